"""Answers about no one recording: runs compared and kept, a running job, a machine."""
