"""Finds what threads lose because they stand still: by their operations, by ticks, and by what the kernel measured."""
