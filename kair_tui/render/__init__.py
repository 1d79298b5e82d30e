"""Result → table, tree, JSON, NDJSON, CSV. Knows nothing of commands."""
