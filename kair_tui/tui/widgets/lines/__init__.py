"""Widgets of lines of text."""
