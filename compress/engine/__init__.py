"""The steps of a recipe and the whole pipeline: preflight, preparation, steps, ablation, cost."""
