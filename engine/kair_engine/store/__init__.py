"""Jobs on disk: the store of imported jobs, and the cache of parsed traces."""
