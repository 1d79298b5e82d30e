"""Converts events' text to columns without an object per event, by code that numba compiles (`kair[fast]`)."""
