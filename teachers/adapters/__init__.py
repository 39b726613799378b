"""Adapters: a few matrices beside the weights of a base, which learn a task while the base stays as it is."""
