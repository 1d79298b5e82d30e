"""One process per host beside the training job: it drains the rings, and delivers what was sampled."""
