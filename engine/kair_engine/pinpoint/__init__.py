"""Stage 2: which of a rank's operations differ from the same operations on its peers."""
