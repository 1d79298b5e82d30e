"""Converts events' text to columns without an object per event, by code in C, where it is compiled."""
