"""What screens are composed of; each widget knows one kind of result, and none computes it."""
