"""Gives data out by the shard to workers that do not step together, so that a slow one simply takes fewer."""
