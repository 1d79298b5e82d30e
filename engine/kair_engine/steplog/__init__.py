"""What a job prints of its steps: lines are read, changes, periods and spikes are found, and what to record next."""
