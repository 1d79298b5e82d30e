"""What real clusters do, convenient as it were to rule it out: the right rank and cause all the same, or a warning."""

from pathlib import Path

import pytest
from compute_faults import SlowGpu
from support.broken_assumptions import (
    PIPELINE,
    recorded,
    with_ranks_as_peers,
)

from kair_engine.results.triage import TriageResult
from kair_engine.timeline.collectives import match
from kair_engine.trace.loading import load_step
from kair_engine.triage.analysis import triage


def share(result: TriageResult) -> float:
    """What the only finding costs, of the step."""
    (finding,) = result.findings
    return finding.time_lost_us_per_step / result.step_time_us


def test_peers_that_are_ranks_of_the_job_are_not_taken_for_places(tmp_path: Path) -> None:
    places = recorded(tmp_path / "places", SlowGpu(0, 1.3), layout=PIPELINE)
    ranks = recorded(tmp_path / "ranks", SlowGpu(0, 1.3), layout=PIPELINE, edits=[with_ranks_as_peers])
    matched = [match(load_step(trace, 0)) for trace in (places, ranks)]
    assert len(matched[1]) == len(matched[0])
    assert matched[1].rejected == 0
    answers = [triage(trace) for trace in (places, ranks)]
    assert share(answers[0]) > 0.03
    assert share(answers[1]) == pytest.approx(share(answers[0]))
