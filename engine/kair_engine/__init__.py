"""The engine: all that Kair knows and computes about a training job; no terminal, no training process."""
