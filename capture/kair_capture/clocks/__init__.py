"""How far a host's clock is from the coordinator's, and how sure that is."""
