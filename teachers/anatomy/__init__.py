"""The anatomy of encoders: the only place that knows the attribute names of model families."""
