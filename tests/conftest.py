"""What all tests share."""

from pathlib import Path

from hypothesis import settings

# A shared machine can stall any example: no test here asserts a time.
settings.register_profile("kair", deadline=None)
settings.load_profile("kair")


def pytest_make_parametrize_id(val: object) -> str | None:
    """A file is called by its name: where this checkout lies is not part of a test."""
    return Path(val).name if isinstance(val, str | Path) and Path(val).is_absolute() else None
