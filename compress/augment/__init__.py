"""More training text for a distillation: changed copies of the examples, and unlabelled text of the same domain."""
