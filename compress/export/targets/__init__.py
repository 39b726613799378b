"""What a model can be exported to: one object a target, a file each; ``registry`` lists them."""
