"""The quantization engine and its algorithms."""
