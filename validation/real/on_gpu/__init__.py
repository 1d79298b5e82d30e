"""Takes whose ranks share a GPU."""
