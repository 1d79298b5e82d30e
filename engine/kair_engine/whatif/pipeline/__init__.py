"""The published what-if model, for recordings of pipeline stages and operation types."""
