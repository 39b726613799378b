"""Quantization: weights and activations with fewer bits."""
