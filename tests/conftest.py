"""What all tests share."""

from hypothesis import settings

# A shared machine can stall any example: no test here asserts a time.
settings.register_profile("kair", deadline=None)
settings.load_profile("kair")
