"""Saved profiles of healthy runs, kept beside the store's jobs."""
