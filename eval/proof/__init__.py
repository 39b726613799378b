"""Paired statistics: intervals, tests and verdicts."""
