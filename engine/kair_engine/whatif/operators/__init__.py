"""The operator-level what-if model, for everything a profiler recorded."""
