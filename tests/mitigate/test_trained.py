"""What a rank wrote down is there as soon as it did, whatever becomes of its process."""

from pathlib import Path
from types import ModuleType

import pytest

from kair_mitigate.audit import audit
from kair_mitigate.plans import Share

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained() -> ModuleType:
    """The module, which needs torch: loaded by the one process that runs this file."""
    return pytest.importorskip("kair_mitigate.trained", reason="needs torch", exc_type=ImportError)


def test_rows_are_there_without_a_close_and_after_it(trained: ModuleType, tmp_path: Path) -> None:
    log = trained.TrainedLog.of_run(tmp_path, 1, 3)
    steps = 2000  # more than one piece of the file
    for step in range(steps):
        share = Share(step, 0, ((4 * step, 4 * step + 4),), (1, 3))
        log.write(share, 1, [], share.places(1))
    path = tmp_path / "trained" / "3-1.jsonl"
    whole = {0: tuple((4 * step, 4 * step + 1) for step in range(steps))}
    for _ in range(2):
        found = audit([path], 4 * steps, 1)
        assert (found.counted, found.missing, found.twice) == (3 * steps, whole, {})
        log.close()
    assert path.read_bytes().endswith(b"}\n")
    log.write(Share(0, 0, ((0, 4),), (1, 3)), 1, [], [range(1, 4)])  # once closed it writes nothing more


def test_samples_that_cannot_be_read_are_named(trained: ModuleType, tmp_path: Path) -> None:
    log = trained.TrainedLog.of_run(tmp_path, 0, 0)
    with pytest.warns(RuntimeWarning, match="sample 17 cannot be read: ValueError: torn"):
        log.write(Share(0, 0, ((0, 4),), (4,)), 0, [trained.Poisoned(17, "ValueError: torn")], [range(4)])
    log.close()
    assert '"poisoned": [17]' in (tmp_path / "trained" / "0-0.jsonl").read_text()


def test_a_folder_that_cannot_be_written_is_told_once_and_no_failure(trained: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "trained").write_text("a file")
    with pytest.warns(RuntimeWarning, match="are not recorded"):
        log = trained.TrainedLog.of_run(tmp_path, 0, 0)
    log.write(Share(0, 0, ((0, 4),), (4,)), 0, [], [range(4)])
