"""Sharing: fewer weights for the same network, used in several places or factorised."""
