"""Kinds of tasks, a file each; ``registry`` finds them, and everything else asks the objects."""
