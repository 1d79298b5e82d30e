"""Facts about a step that span ranks: collectives, clocks, self time, roles, peers, and who waited for what."""
