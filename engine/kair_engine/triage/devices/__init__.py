"""What keeps devices from working though nobody's operators are slow: launches, and other processes."""
