"""A short benchmark of one machine, and its comparison with peers: what confirms an accusation."""
