"""Widgets of bars and curves."""
