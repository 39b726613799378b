"""Documents that answer queries: a corpus, the best documents of a query, and vectors that take fewer bytes."""
