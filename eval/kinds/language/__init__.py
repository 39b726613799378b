"""Kinds of task whose predictions are tokens: of a text itself, or of another one that is written."""
