"""Plan, train, quantize, evaluate and gate language models."""
