"""What all tests share."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from support.answers import PLACE, answered_once
from support.cli_samples import store_variables

# A shared machine can stall any example: no test here asserts a time.
settings.register_profile("kair", deadline=None)
settings.load_profile("kair")


def pytest_configure(config: pytest.Config) -> None:
    """Makes the folder of parsed traces that all processes of this run share."""
    if not hasattr(config, "workerinput"):
        folder = TemporaryDirectory(prefix="kair-tests-")
        os.environ[PLACE] = folder.name
        config.add_cleanup(folder.cleanup)


def pytest_make_parametrize_id(val: object) -> str | None:
    """A file is called by its name: where this checkout lies is not part of a test."""
    return Path(val).name if isinstance(val, str | Path) and Path(val).is_absolute() else None


@pytest.fixture(scope="module")
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store and bookmarks that only the module's tests know; recordings are parsed and analysed once for all."""
    with pytest.MonkeyPatch.context() as patch, answered_once():
        folder = tmp_path_factory.mktemp("kair")
        store_variables(patch, folder)
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        yield
