"""The engines that ``benchmarks.inference`` compares: how current tools run a model, and how this one does."""
