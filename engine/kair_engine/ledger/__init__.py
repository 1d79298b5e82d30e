"""Checks predictions against later runs, and records slow devices, links and hosts over all jobs."""
