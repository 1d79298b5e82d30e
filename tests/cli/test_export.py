"""`kair export`: a file whose name says the format, and one line that says what is in it."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support.cli_samples import kair, store_variables
from support.places import SAMPLES

JOB = str(SAMPLES / "slow_operator")


@pytest.fixture(autouse=True)
def _own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store_variables(monkeypatch, tmp_path)


def events(file: Path) -> list[dict[str, Any]]:
    """The events of a trace file that Perfetto opens."""
    return json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]


@pytest.mark.slow
def test_every_timeline_can_be_written_for_perfetto(tmp_path: Path) -> None:
    exported, looked_at, ideal = (tmp_path / f"{name}.json.gz" for name in ("exported", "looked_at", "ideal"))
    assert kair("export", JOB, "--step", "4", "--perfetto", str(exported)).status == 0
    assert kair("timeline", JOB, "--step", "4", "--perfetto", str(looked_at)).status == 0
    assert events(looked_at) == events(exported) and {one["ph"] for one in events(exported)} >= {"M", "X"}
    assert kair("whatif", JOB, "--step", "4", "--perfetto", str(ideal)).status == 0
    assert events(ideal) != events(exported)


@pytest.mark.parametrize(
    "words",
    [
        ("export", JOB),
        ("export", JOB, "--perfetto", "a.json", "-o", "b.json"),
        ("export", JOB, "--perfetto", "table.csv"),
        ("timeline", JOB, "--step", "4", "--perfetto", "table.parquet"),
    ],
)
def test_a_timeline_goes_into_one_file_that_perfetto_knows(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = kair(*words)
    assert (outcome.status, [*tmp_path.glob("*.*")]) == (2, [])
    assert outcome.err.splitlines()[-1].startswith("hint: ")


@pytest.mark.slow
def test_the_line_says_what_was_written(tmp_path: Path) -> None:
    file = tmp_path / "one.pftrace"
    outcome = kair("export", JOB, "--step", "4-5", "--plain", "-o", str(file))
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{file}: ")
    assert outcome.out.endswith(" operations of 4 ranks in 2 steps\n")
    assert file.stat().st_size > 0
