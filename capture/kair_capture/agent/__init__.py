"""Runs one process per host next to the training job: it drains the rings and delivers samples."""
