"""The graph of a step: which operation waits for which, on streams and threads, as the profiler shows it."""
