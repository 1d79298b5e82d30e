"""What the profiler does on the threads that it records is told as its own work: of all ranks, and of single ones."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from layouts import JobLayout
from support.broken_assumptions import BufferRequests, as_buffer_requests, recorded

from kair_engine.results.triage import TriageResult
from kair_engine.triage.analysis import triage
from kair_tui.render.sentences import sentence_of
from kair_tui.render.triage import gain_in_words, suggestion_of

DP4 = JobLayout("dp", 4)
HELD_MS = 25.0


def triaged(folder: Path, ranks: Sequence[int], every: int = 1) -> TriageResult:
    faults = [BufferRequests(tuple(ranks), HELD_MS, every)] if ranks else []
    return triage(recorded(folder, *faults, layout=DP4, edits=[as_buffer_requests]))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> TriageResult:
    return triaged(tmp_path_factory.mktemp("healthy"), ())


@pytest.mark.slow
def test_that_all_ranks_wait_for_their_profilers_is_nobodys_fault(tmp_path: Path, healthy: TriageResult) -> None:
    found = triaged(tmp_path, range(4))
    (finding,) = found.findings
    assert (finding.cause, finding.pattern, finding.ranks) == ("profiler", "job_wide", ())
    # The simulator knows what the job takes without it.
    gained = found.step_time_us - healthy.step_time_us
    assert gained > 10_000
    assert finding.time_lost_us_per_step == pytest.approx(gained, rel=0.1)
    (held,) = (one for one in finding.evidence if one.kind == "profiler")
    assert held.figures == {"held_us_per_step": pytest.approx(HELD_MS * 1e3)}
    # Nobody saves GPU-hours without it but in the steps that are recorded.
    assert gain_in_words(found) == ""
    words = "the profiler's own work (as asking for buffers) holds up the median rank's launches for 25.0 ms a step"
    assert sentence_of(held) == words


@pytest.mark.slow
def test_what_the_profiler_does_now_and_then_is_no_lack_of_cores(tmp_path: Path) -> None:
    assert [one.cause for one in triaged(tmp_path, range(4), every=2).findings] == ["profiler"]


@pytest.mark.slow
def test_a_rank_that_waits_for_its_profiler_is_not_to_be_drained(tmp_path: Path, healthy: TriageResult) -> None:
    found = triaged(tmp_path, [2])
    (finding,) = found.findings
    assert (finding.cause, finding.ranks) == ("profiler", (2,))
    assert finding.time_lost_us_per_step == pytest.approx(found.step_time_us - healthy.step_time_us, rel=0.1)
    (held,) = (one for one in finding.evidence if one.kind == "profiler")
    assert held.figures == {"held_us_per_step": pytest.approx(HELD_MS * 1e3), "peers_us_per_step": 0.0}
    words = "the profiler's own work (as asking for buffers) holds up launches of rank 2 for 25.0 ms a step"
    assert sentence_of(held).startswith(words)
    assert suggestion_of(finding).startswith("The profiler holds rank 2 up")
