"""Steps of a job whose hosts run ahead of its devices, replayed one after another in their steady state."""
