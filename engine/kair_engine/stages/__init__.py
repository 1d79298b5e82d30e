"""The three stages: which rank, which of its operations, and why."""
