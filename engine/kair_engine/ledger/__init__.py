"""What was predicted of jobs held against what came, and the records of devices, links and hosts over all jobs."""
