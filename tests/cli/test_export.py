"""`kair export`: a file whose name says the format, and one line that says what is in it."""

from pathlib import Path

import pytest
from support.cli_samples import kair, store_variables
from support.places import SAMPLES

JOB = str(SAMPLES / "slow_operator")


@pytest.fixture(autouse=True)
def _own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store_variables(monkeypatch, tmp_path)


def test_the_line_says_what_was_written(tmp_path: Path) -> None:
    file = tmp_path / "one.pftrace"
    outcome = kair("export", JOB, "--step", "4-5", "--plain", "-o", str(file))
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{file}: ")
    assert outcome.out.endswith(" operations of 4 ranks in 2 steps\n")
    assert file.stat().st_size > 0
