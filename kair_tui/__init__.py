"""The kair command."""
