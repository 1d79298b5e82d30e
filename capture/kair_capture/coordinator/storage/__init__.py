"""Keeps what ranks tell in the job's folder: steps, scopes, windows, and what a restart must know."""
