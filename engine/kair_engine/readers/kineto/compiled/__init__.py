"""Events' text to columns without an object for each event, by machine code that numba makes (`kair[fast]`)."""
