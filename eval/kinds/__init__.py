"""Kinds of tasks, a file each; ``kind_registry`` finds them, and everything else asks the objects."""
