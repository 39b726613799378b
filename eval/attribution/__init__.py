"""How alike two models weigh the words of a text: what is compared, and what comes of it, from numbers alone."""
