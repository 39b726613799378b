"""Fine-tuning a full model on one task or several, once, with the strategies that a recipe can name."""
