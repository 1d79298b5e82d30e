"""Models operators: the what-if analysis of everything a profiler recorded."""
