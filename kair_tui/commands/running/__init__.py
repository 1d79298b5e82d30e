"""Watch a running job: capture, its coordinator, and what that says."""
