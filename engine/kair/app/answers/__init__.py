"""The functions that answer questions about a job: each asks the engine, with what lies beside the recording."""
