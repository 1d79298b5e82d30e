"""Readers of what clusters keep beside traces: telemetry, logs, schedulers' accounts."""
