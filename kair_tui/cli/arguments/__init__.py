"""What a command line chooses: a job, steps, a baseline, and what it is to fail on."""
