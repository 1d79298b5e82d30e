"""A cluster's workers: the answers are those of one process, and what stands in the way is said in one line."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from support.answers import recorded
from support.places import SAMPLES

from kair_engine import dask_workers
from kair_engine.blame.analysis import blame
from kair_engine.dask_workers import DaskWorkers
from kair_engine.errors import InputError, UsageError
from kair_engine.localize.analysis import localize
from kair_engine.trace import batches as parts
from kair_engine.trace.batches import step_batches
from kair_engine.trace.model import Trace
from kair_engine.triage import replays
from kair_engine.triage.analysis import triage
from kair_tui.cli.main import main

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]  # warnings of the cluster are its own
JOB = SAMPLES / "slow_input"


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    # It sets variables for its workers, which whatever other tests start would have too.
    with patch.dict(os.environ):
        distributed = pytest.importorskip("distributed")
        with distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster:
            yield cluster.scheduler_address


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part for every two steps or so; a recording of this size would be one, and its steps kept for the prices."""
    monkeypatch.setattr(replays, "MOST_KEPT", 0)
    monkeypatch.setattr(parts, "step_batches", lambda trace, _=None: step_batches(trace, 3_000))


@pytest.fixture
def job(small_parts: None) -> Trace:  # noqa: ARG001
    trace = replace(recorded(JOB), memory=None)
    assert len(list(parts.step_batches(trace))) > 2
    return trace


def test_answers_are_those_of_one_process(job: Trace, scheduler: str) -> None:
    workers = DaskWorkers(scheduler)
    elsewhere = replace(job, workers=workers)
    assert triage(elsewhere) == triage(job)
    assert localize(elsewhere) == localize(job)
    assert blame(elsewhere) == blame(job)
    workers.close()


def test_parts_put_together_are_the_whole(job: Trace) -> None:
    whole = replace(recorded(JOB), memory=None)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parts, "step_batches", lambda trace, _=None: [list(trace.steps)])
        expected, causes = triage(whole), blame(whole)
    found, again = triage(job), blame(job)
    assert found.verdict == expected.verdict == "straggler"
    assert [one.ranks for one in found.findings] == [one.ranks for one in expected.findings]
    assert found.waiting_us_per_step == pytest.approx(expected.waiting_us_per_step)
    assert [row.blamed_us for row in again.root_causes] == pytest.approx([row.blamed_us for row in causes.root_causes])
    assert again.waiting == causes.waiting
    assert [(path.step, path.waited_us) for path in again.paths] == [
        (path.step, path.waited_us) for path in causes.paths
    ]


def test_what_stands_in_the_way_is_said(
    job: Trace, scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_workers, "CONNECT_S", 0.2)
    with pytest.raises(UsageError, match="no Dask scheduler answers at tcp"):
        localize(replace(job, workers=DaskWorkers("tcp://127.0.0.1:9")))
    workers = DaskWorkers(scheduler)
    nowhere = replace(job, fragments=(tmp_path / "gone.parquet",), workers=workers)
    with pytest.raises(InputError, match=r"a worker does not find .*gone\.parquet"):
        list(parts.over_parts(nowhere, _read))
    workers.close()


def _read(part: Trace) -> bytes:
    return part.fragments[0].read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["whatif", "--engine", "dask"], "a cluster works for kair triage, kair ticket, kair localize, kair blame"),
        (["triage", "--engine", "dask"], "--engine dask needs a cluster"),
        (["triage", "--scheduler", "tcp://x:1"], "--scheduler belongs to --engine dask"),
        (["localize", "--method", "paper", "--engine", "dask"], "--method paper works in this process alone"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    assert main([*arguments[:1], str(JOB), *arguments[1:]]) == 2
    assert said in capsys.readouterr().err
