"""Quantization: numbers of fewer bits."""
