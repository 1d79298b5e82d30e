"""Process groups of communication that names none, derived from all ranks' recordings together."""
