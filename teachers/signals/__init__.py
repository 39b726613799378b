"""Teacher outputs: logits, hidden states and attention, read through hooks and cached on disk."""
