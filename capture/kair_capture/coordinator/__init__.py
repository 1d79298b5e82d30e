"""Runs one process per job, to which all agents report: it notices slowness, has it sampled, and commits deliveries."""
