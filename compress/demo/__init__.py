"""A demonstration that needs no data and no network: a seeded grammar of reviews, a small teacher, one recipe."""
