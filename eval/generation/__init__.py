"""Text that a model writes: which token comes next, given its scores."""
