"""From a path to a trace: files are found, parsed into the cache, and joined into one job."""
