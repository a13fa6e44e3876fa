"""Terms of the memory model, one file each."""
