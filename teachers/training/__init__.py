"""The one training loop, and what it owns: checkpoints, schedules, processes, monitoring."""
