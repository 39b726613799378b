"""What a model costs: bytes, parameters, multiply-accumulates, latency, memory, and on which machine."""
