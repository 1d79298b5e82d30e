"""Predictions of jobs checked by what came, and the records of devices, links and hosts over all jobs."""
