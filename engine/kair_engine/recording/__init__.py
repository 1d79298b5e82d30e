"""From what a person names to a trace: files found, parsed into the cache, and joined into one job."""
