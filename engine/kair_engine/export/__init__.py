"""The job written for other programs: one timeline of all ranks, or the operations table."""
