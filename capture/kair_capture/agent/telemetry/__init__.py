"""What the agent reads of its host beside the job's steps: devices, cores, memory, disks, links and processes."""
