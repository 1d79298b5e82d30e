"""Reads an agent's host during the job: devices, cores, memory, disks, links and processes."""
