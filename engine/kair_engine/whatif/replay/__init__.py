"""Replays dependency graphs with other durations, whatever they are of."""
