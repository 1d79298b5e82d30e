"""For machines: the commands and their answers described as JSON."""
