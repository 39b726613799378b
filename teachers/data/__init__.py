"""Training data: encoded examples and the batches they form."""
