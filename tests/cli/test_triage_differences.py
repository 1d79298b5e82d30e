"""`kair triage` lists what differs between ranks, since the attempt before, and since the baseline was kept."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.changed_jobs import job

from kair.app.investigate import triage
from kair.app.question import Given
from kair_engine.baselines import Baselines
from kair_engine.comparison.profile import profile_of
from kair_engine.results.localize import ChosenBaseline
from kair_engine.results.triage import TriageResult
from kair_engine.trace.identity import RankIdentity
from kair_engine.trace.identity_file import identity_json
from kair_engine.trace.model import Trace
from kair_tui.render.triage import context_lines, triage_in_words


def run(trace: Trace, baseline: ChosenBaseline | None = None) -> TriageResult:
    return triage_in_words(triage(Given(trace, baseline))[0])


def identity(rank: int, attempt: int = 2, *, host: str = "node-0", driver: str = "550") -> RankIdentity:
    return RankIdentity(rank, host, pid=100 * attempt + rank, process_s=attempt, versions={"driver": driver})


def recorded(folder: Path, *identities: RankIdentity, stored_in: Path | None = None) -> Trace:
    """A job whose rank 2 computes longer."""
    trace = job(folder, lambda name, _, rank: 400.0 if (name, rank) == ("gemm", 2) else 0.0)
    known = {one.rank: one for one in identities}
    where = None if stored_in is None else str(stored_in)
    return replace(trace, job=replace(trace.job, identity=known, stored_in=where))


def test_a_driver_that_the_accused_rank_alone_has_is_listed(tmp_path: Path) -> None:
    result = run(recorded(tmp_path, *(identity(rank, driver="535" if rank == 2 else "550") for rank in range(4))))
    assert [one.ranks for one in result.findings] == [(2,)]
    assert [one.accused for one in result.differences] == [True]
    assert context_lines(result) == ["differs: rank 2 (node-0): versions driver is 535; 3 others have 550"]


@pytest.mark.slow
def test_of_ranks_that_are_alike_or_unknown_nothing_is_listed(tmp_path: Path) -> None:
    assert context_lines(run(recorded(tmp_path / "alike", *map(identity, range(4))))) == []
    assert context_lines(run(recorded(tmp_path / "unknown"))) == []


def test_a_rank_that_ran_elsewhere_in_the_attempt_before_is_listed(tmp_path: Path) -> None:
    folder = tmp_path / "job" / "evidence"
    folder.mkdir(parents=True)
    for rank in range(4):
        for attempt in (1, 2):
            host = "node-9" if (rank, attempt) == (2, 1) else "node-0"
            one = identity(rank, attempt, host=host)
            (folder / f"identity-rank-{rank}.{attempt}.json").write_bytes(identity_json(one))
    result = run(recorded(tmp_path / "traces", stored_in=tmp_path / "job" / "recording"))
    assert context_lines(result) == [
        "changed since attempt 1: rank 2 (node-0): host is node-0, it was node-9; on 3 other ranks it is as it was"
    ]


@pytest.mark.slow
def test_what_a_kept_baseline_ran_with_is_held_against_the_job(tmp_path: Path) -> None:
    healthy = replace(profile_of(job(tmp_path / "before")), identity={rank: identity(rank) for rank in range(4)})
    kept = Baselines(tmp_path / "store")
    kept.save("healthy", healthy)
    chosen = ChosenBaseline("healthy", kept.load("healthy"), named=True)
    now = recorded(tmp_path / "now", *(identity(rank, driver="560") for rank in range(4)))
    assert context_lines(run(now, baseline=chosen)) == ["other than in healthy: versions driver is 560, it was 550"]
