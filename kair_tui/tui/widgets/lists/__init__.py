"""Widgets of rows: tables, lists and trees."""
