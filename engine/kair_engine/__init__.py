"""What Kair knows and computes about a training job; no terminal and no training process in here."""
