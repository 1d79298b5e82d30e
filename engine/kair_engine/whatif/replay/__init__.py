"""Replay of a dependency graph with other durations, whatever the graph is of."""
