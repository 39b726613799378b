"""What a model can be exported to: one object a target, a file each; ``target_registry`` lists them."""
