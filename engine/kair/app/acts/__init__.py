"""Acts: what changes the store or the cache, or writes a file that a person names. Answers do neither."""
