"""Reading what a user writes: YAML with places, values into typed blocks, and every error as a sentence."""
