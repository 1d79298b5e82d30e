"""What all tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from support.cli_samples import store_variables

# A shared machine can stall any example: no test here asserts a time.
settings.register_profile("kair", deadline=None)
settings.load_profile("kair")


def pytest_make_parametrize_id(val: object) -> str | None:
    """A file is called by its name: where this checkout lies is not part of a test."""
    return Path(val).name if isinstance(val, str | Path) and Path(val).is_absolute() else None


@pytest.fixture(scope="module")
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store, a cache and bookmarks that only the module's tests know."""
    with pytest.MonkeyPatch.context() as patch:
        store_variables(patch, tmp_path_factory.mktemp("kair"))
        yield
