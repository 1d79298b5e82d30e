"""Trace formats: one file per format, each turning a recording into fragments of the operations table."""
