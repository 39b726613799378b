"""Replacement: parts of a model are exchanged for smaller ones while it is trained."""
