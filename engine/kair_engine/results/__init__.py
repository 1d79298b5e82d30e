"""Answers of the analyses: frozen records of plain values, shared by tables, JSON and the screens.

Field names and meanings follow the command-line contract; units are in the names (`_us`, `_ns`, `_bytes`).
Floats are finite.
"""
