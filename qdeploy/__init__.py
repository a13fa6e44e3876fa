"""Plan, train, quantize, evaluate and gate language models."""

__version__ = "0.1.0"
