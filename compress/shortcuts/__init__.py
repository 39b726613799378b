"""One call from a finished model and somebody's data to a smaller model: the recipe is written, run and kept."""
