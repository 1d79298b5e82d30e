"""A step over time: ranks as rows, what each does in every window of time."""
