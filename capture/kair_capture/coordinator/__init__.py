"""One process per job that hears all agents: it notices what is slow, has it sampled, and commits what they deliver."""
