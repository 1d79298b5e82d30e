"""Hands data out in shards to workers that do not step together, so that a slow one simply takes fewer."""
