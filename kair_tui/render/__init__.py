"""Renders results: tables, trees, JSON, NDJSON, CSV. Knows nothing of commands."""
