"""What all tests share."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from support.answers import PLACE, answered_once
from support.cli_samples import store_variables
from support.forked_kair import forked_kair

# A shared machine can stall any example: no test here asserts a time. What more examples would show, the fuzzer does.
settings.register_profile("kair", deadline=None, max_examples=25)
settings.load_profile("kair")

TESTS = Path(__file__).parent
LONGEST = (
    "capture/test_beside_a_job.py",
    "mitigate/test_restart.py",
    "deploy/test_schedulers.py",
    "tui/test_terminal.py",
    "capture/test_job.py",
    "capture/test_two_ranks.py",
    "cli/test_donate.py",
    "golden/test_consistency.py",
    "tui/test_tasks_at_scale.py",
    "mitigate/test_simulation.py",
    "golden/test_laws.py",
    "engine/test_other_runs.py",
    "engine/test_large_steps.py",
    "app/test_faces.py",
    "benchmarks/test_accuracy.py",
    "mitigate/test_replay.py",
    "tui/test_pictures.py",
    "tui/test_ways.py",
    "engine/test_certificate.py",
    "golden/test_account.py",
    "golden/test_one_price.py",
    "engine/test_step_bar.py",
    "engine/test_compare_prices.py",
    "engine/test_uneven_work.py",
    "engine/test_windows.py",
    "cli/test_analyses.py",
    "golden/test_permuted_ranks.py",
    "tui/test_cancelled_anywhere.py",
    "whatif/test_ticks.py",
    "unit/test_answers_write_nothing.py",
    "unit/test_docs.py",
)
"""Files of ten seconds and more, or that wait for as long; the first one waits for most of its time."""
_OF_THE_USER = ("KAIR_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
_OF_TESTS = ("KAIR_TEST", "KAIR_UPDATE_")


def pytest_configure(config: pytest.Config) -> None:
    """Makes the folder of parsed traces that all processes of this run share."""
    # What is imported and collected stays: to look for rubbish meanwhile takes a tenth of collecting.
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a script has it that runs tests in its background; what tests start would not be interrupted either.
        signal.signal(signal.SIGINT, lambda *_: None)
    if not hasattr(config, "workerinput"):
        folder = TemporaryDirectory(prefix="kair-tests-")
        config.add_cleanup(folder.cleanup)
        _forget_the_user(Path(folder.name))
        os.environ[PLACE] = folder.name


def _forget_the_user(folder: Path) -> None:
    """Who runs the tests has jobs, settings and variables, perhaps those of a rank: no test goes by them."""
    for name in [*os.environ]:
        if name.startswith(_OF_THE_USER) and not name.startswith(_OF_TESTS):
            del os.environ[name]
    os.environ |= {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One for each core, and two where jobs really run: these wait for half of their time, others compute."""
    return (2 if config.option.markexpr == "live" else 1) * (os.cpu_count() or 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest come first, so that none of them is what everybody waits for at the end."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.relative_to(TESTS).as_posix(), len(place)))


def pytest_collection_finish() -> None:
    """What was imported stays, and rubbish is looked for less often: that took a twentieth of all tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """A file is called by its name: where this checkout lies is not part of a test."""
    return Path(val).name if isinstance(val, str | Path) and Path(val).is_absolute() else None


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with what a shell finds as `kair`: for tests of what is said to it, which are not of the process."""
    with forked_kair(tmp_path_factory.mktemp("programs")) as folder:
        yield folder


@pytest.fixture(scope="module")
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store and bookmarks that only the module's tests know; recordings are parsed and analysed once for all."""
    with pytest.MonkeyPatch.context() as patch, answered_once():
        folder = tmp_path_factory.mktemp("kair")
        store_variables(patch, folder)
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        yield
