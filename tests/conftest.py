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

TESTS = Path(__file__).parent
LONGEST = (
    "benchmarks/test_accuracy.py",
    "benchmarks/test_sample_recorder.py",
    "capture/test_job.py",
    "golden/test_samples.py",
    "tui/test_terminal.py",
    "engine/test_sensitivity.py",
    "engine/test_triage.py",
    "engine/test_assumptions.py",
    "tui/test_common_keys.py",
    "tui/test_blame.py",
    "tui/test_whatif.py",
    "engine/test_evidence.py",
    "engine/test_invariants.py",
    "cli/test_analyses.py",
    "tui/test_jobs.py",
    "tui/test_frequency.py",
    "tui/test_rank.py",
    "tui/test_matrix.py",
    "golden/test_groups.py",
    "engine/test_uncompared.py",
    "unit/test_docs.py",
    "benchmarks/test_fuzz.py",
)
"""Files of five seconds and more."""


def pytest_configure(config: pytest.Config) -> None:
    """Makes the folder of parsed traces that all processes of this run share."""
    if not hasattr(config, "workerinput"):
        folder = TemporaryDirectory(prefix="kair-tests-")
        os.environ[PLACE] = folder.name
        config.add_cleanup(folder.cleanup)


def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: tests of screens wait for half of their time."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest come first, so that none of them is what everybody waits for at the end."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.relative_to(TESTS).as_posix(), len(place)))


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
