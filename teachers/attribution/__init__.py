"""What a model's prediction rests on: attributions to the tokens of its input."""
