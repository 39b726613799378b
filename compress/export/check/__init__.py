"""Whether an export answers as its model does: when it is written (``gate``), and anywhere later (``verification``)."""
