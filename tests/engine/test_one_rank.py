"""A recording of one rank alone: what can be told without peers is, and nothing is said of who is to blame."""

from pathlib import Path

import pytest
from support.answers import recorded, triaged
from support.places import MEGATRON
from support.tensor_parallel import write_tensor_parallel

from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import TriageResult
from kair_engine.triage.analysis import triage
from kair_engine.views.rank_profile import rank_profile
from kair_tui.render.triage import triage_in_words


def parts(result: TriageResult) -> dict[str, float]:
    return {row.part: row.own_us for row in result.parts}


@pytest.mark.slow
def test_where_the_step_goes(tmp_path: Path) -> None:
    """Four GEMMs of 400 µs; a peer takes longer: the collectives wait, but for whom one rank cannot show."""
    job = write_tensor_parallel(tmp_path / "job", collective="ncclDevKernel_AllReduce", slow={1: 1.1})
    result = triage(open_trace(job / "rank0.json", cache=tmp_path / "cache"))
    assert (result.verdict, result.findings) == ("inconclusive", ())
    of_step = parts(result)
    assert of_step["compute"] == pytest.approx(1600, rel=0.03)
    assert of_step["communication"] == pytest.approx(4 * (30 + 40), rel=0.2)
    assert sum(of_step.values()) == pytest.approx(result.step_time_us, rel=0.03)
    told = triage_in_words(result).summary
    assert "one rank only: there is no peer to compare it with" in told
    assert "ms step are compute" in told


@pytest.mark.slow
@pytest.mark.skipif(not MEGATRON.is_dir(), reason=f"the real traces are not at {MEGATRON}")
@pytest.mark.parametrize("rank", [0, 3, 6])
def test_threads_that_stand_still_are_told_of_one_rank_as_of_all(rank: int) -> None:
    """Of eight ranks it is contention: the exposed communication of one goes by while its threads stand still."""
    file = MEGATRON / f"megatron_kineto_{rank}.json.gz"
    result = triaged(file)
    assert result.verdict == "job_wide"
    assert [finding.cause for finding in result.findings] == ["contention"]
    assert all(finding.ranks == () and finding.seen_on == (rank,) for finding in result.findings)
    told = triage_in_words(result)
    assert "one rank only" in told.summary
    assert "no rank is to blame" not in told.summary
    assert told.findings[0].suggestion.startswith("Its threads stop in the middle of operations: ")
    assert told.findings[0].evidence[0].sentence.startswith("its threads stop ")
    assert result.parts == rank_profile(recorded(file), rank=rank).parts
