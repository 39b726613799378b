"""Networks that write: the scores of their next tokens in torch, and how a folder says that texts are searched for."""
