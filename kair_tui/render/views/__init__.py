"""Views: how each command's result is shown to people, one module per result."""
