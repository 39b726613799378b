"""Certificates of runs: written from what a run kept, and checked by running its models again."""
