"""What-if analysis: the recorded job replayed with other durations, and what everything costs."""
