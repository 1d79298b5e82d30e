"""Answers questions about a job: each function asks the engine, with what lies next to the recording."""
