"""Stage 1: which rank behaves differently from its peers."""
