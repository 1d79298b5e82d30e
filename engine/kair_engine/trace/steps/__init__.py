"""Reads a recording a step at a time, or some steps in one go; what is worked out of steps is kept where it fits."""
