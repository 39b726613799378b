"""Custom student design: the shape, whether it is possible, inherited weights, predicted cost."""
