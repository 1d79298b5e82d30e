"""Keep jobs: the store, baselines, the cache of parsed traces."""
