"""What flows through a recipe: a model that knows how it came to be, saved and loaded."""
