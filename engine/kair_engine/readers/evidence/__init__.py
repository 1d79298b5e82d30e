"""Readers of what clusters keep apart from traces: telemetry, logs, schedulers' accounting."""
