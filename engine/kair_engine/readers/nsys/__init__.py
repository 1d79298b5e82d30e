"""Nsight Systems' reports as exported to SQLite: a rank for each process that uses a GPU."""
