"""Joins a verdict with what telemetry, logs and identities say: which part explains it, what differs, what changed."""
