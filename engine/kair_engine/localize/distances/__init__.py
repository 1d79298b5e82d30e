"""Distances of every rank from every other, by scipy or, of many, by machine code that numba makes (`kair[fast]`)."""
