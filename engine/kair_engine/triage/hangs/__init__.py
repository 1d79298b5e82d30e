"""Triage of recordings of calls, which a hang leaves behind: who has not arrived at which call."""
