"""The screens of a job, one a module; screen_registry.py lists them."""
