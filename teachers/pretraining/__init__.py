"""Pretraining: text to shards, shards to sequences, sequences to what an objective hides and asks for."""
