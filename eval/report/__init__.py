"""Results for people: a table for the console, one self-contained page, plots and a model card."""
