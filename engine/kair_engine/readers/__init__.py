"""Trace formats: one folder per format, each turning a recording into fragments of the operations table."""
