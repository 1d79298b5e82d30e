"""Hangs re-created from public reports: their right answers, by analyses of their own."""

from pathlib import Path

import pytest
from support.places import CASES

from kair_engine.recording.opening import open_trace
from kair_engine.triage.analysis import triage

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside the checkout")

AHEAD = (*range(12), *range(14, 32))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "ranks", "operator", "number", "first"),
    [
        ("fr_batched_p2p_noise", (5,), "_reduce_scatter_base", 4, "not_arrived"),
        ("fr_pipeline_recv", (2,), "recv", 13, "waits_for"),
        ("fr_retired_in_post_hook", (2,), "all_reduce", 11, "not_arrived"),
        ("fr_size_mismatch_hosts", (6, 11), "all_reduce", 39, "other_call"),
        ("right_today/fr_only_victim", (1,), "all_reduce", 8, "no_dump"),
        ("right_today/fr_two_ahead", AHEAD, "_all_gather_base", 641, "not_arrived"),
    ],
)
def test_who_has_not_arrived_at_what(
    case: str, ranks: tuple[int, ...], operator: str, number: int, first: str, tmp_path: Path
) -> None:
    result = triage(open_trace(CASES / case / "input", cache=tmp_path))
    (finding,) = result.findings
    assert (result.verdict, finding.cause, finding.ranks, finding.operator) == ("straggler", "hang", ranks, operator)
    evidence = finding.evidence[0]
    assert (evidence.kind, evidence.figures["sequence"]) == (first, number)
    kinds = {one.kind for one in finding.evidence}
    assert "called_at" in kinds and "waits_elsewhere" not in kinds
