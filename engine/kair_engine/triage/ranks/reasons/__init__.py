"""What makes ranks slow, one kind of reason a module; causes.py asks them in turn."""
