"""A model as an ONNX graph: traced, brought into one form, made int8; ``build`` does all of it."""
