"""Scores: on all examples, on one, and on any resample of them."""
