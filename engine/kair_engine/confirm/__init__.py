"""What random delays in a running job prove: which rank holds up the job, and what a fix is worth."""
