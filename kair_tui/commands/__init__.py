"""One file per command: its arguments, one engine call, its renderer."""
