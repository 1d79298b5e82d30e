"""Who is slow by the history of steps: every rank's row for every step, as capture keeps it, sampled or not."""
