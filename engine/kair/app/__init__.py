"""Open a job, answer questions about it, keep answers: what every face calls, and `import kair` too."""
