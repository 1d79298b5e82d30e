"""The screens of a job, one per module; screen_registry.py lists them."""
