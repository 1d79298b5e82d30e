"""What a command writes: the answer, its progress, errors, whole files."""
