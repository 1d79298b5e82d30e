"""A slow link names the process group it belongs to, not a rank."""

from pathlib import Path

import pytest
from trace_builder import trace

from kair_engine.stages.localize import localize
from kair_engine.triage import triage

PAIRS = 5


def pairs(slow: dict[int, float], steps: int = 6) -> str:
    """Ten ranks in five groups of two; each computes for 100 µs, then reduces for about 50 µs (a slow group longer)."""
    lines = []
    for step in range(steps):
        begin = step * 1000
        lines.append(f"step {step}: {begin}+400")
        for pair in range(PAIRS):
            took = slow.get(pair, 50 + pair % 2)
            ranks = f"{2 * pair}-{2 * pair + 1}"
            lines.append(f"{ranks} gpu7 | gemm {begin}+100 | allreduce@dp{pair}#{step} {begin + 100}+{took}")
    return "\n".join(lines)


def test_a_slow_group_is_named_and_no_rank_is_flagged(tmp_path: Path) -> None:
    made = trace(tmp_path, pairs({3: 120}))
    result = localize(made)
    (slow,) = result.slow_communicators
    assert (slow.group, slow.ranks, slow.operator, slow.siblings) == ("dp3", (6, 7), "allreduce", 4)
    assert (slow.own_us, slow.expected_us) == (120, 50)
    assert not any(score.flagged for score in result.scores)
    (finding,) = triage(made).findings
    assert (finding.cause, finding.pattern, finding.edge, finding.ranks) == ("communication", "group", "dp3", (6, 7))
    assert finding.time_lost_us_per_step == 70
    assert finding.slowdown == pytest.approx(400 / 330)
    assert "no rank in it" in finding.evidence[1]


@pytest.mark.parametrize("slow", [{}, {3: 56}, dict.fromkeys(range(PAIRS), 120)])
def test_groups_within_15_percent_of_their_siblings_are_left_alone(tmp_path: Path, slow: dict[int, float]) -> None:
    assert localize(trace(tmp_path, pairs(slow))).slow_communicators == ()
