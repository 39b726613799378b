"""Distillation: a student learns from what a teacher answers."""
