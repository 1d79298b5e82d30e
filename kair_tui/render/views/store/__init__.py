"""What is kept: jobs, baselines and the cache, and what all jobs together cost."""
