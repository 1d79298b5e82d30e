"""Replays the recorded job with other durations: what everything costs, and what fixes save."""
