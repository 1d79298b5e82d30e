"""Widgets of the screens; each knows one kind of result, and none computes it."""
