"""Pruning: parts of a model are taken out."""
