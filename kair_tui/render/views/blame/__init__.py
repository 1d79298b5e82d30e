"""Blame for people: a table, paths as trees, and the graph of who waited for whom."""
