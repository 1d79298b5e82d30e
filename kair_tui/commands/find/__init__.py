"""Find the straggler: the investigation and its stages, and what runs several commands."""
