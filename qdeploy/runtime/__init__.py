"""Candidates that run: load a model folder, generate, score."""
