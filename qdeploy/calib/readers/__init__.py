"""Readers of data files, one per file suffix."""
