"""A ring of fixed-size records in shared memory: one producing thread, one consuming process."""
