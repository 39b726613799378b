"""Facts of a knowledge graph: read from files, found in texts."""
