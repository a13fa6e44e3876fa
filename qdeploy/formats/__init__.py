"""Checkpoint formats, one file each: pure functions on state dicts."""
