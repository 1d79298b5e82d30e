"""Joins a verdict with telemetry, logs and identities: which part explains it, what differs, what changed."""
