"""What distillations share: losses, layer maps, attention relations, projections, schedules."""
