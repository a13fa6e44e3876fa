"""What a model is, as data."""
