"""From business data to batches of token ids."""
