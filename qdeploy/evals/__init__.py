"""Suites, metrics and paired comparison."""
