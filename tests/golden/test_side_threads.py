"""A thread of a sample's job that paces itself, as one that writes checkpoints: it changes no verdict and no price."""

from pathlib import Path

import pytest
from support.altered import Content, altered
from support.answers import triaged
from support.places import SAMPLES

from kair_engine.recording.opening import open_trace
from kair_engine.triage.analysis import triage


def writer(period_us: float, duty: float) -> Content:
    """A change of a rank's file: a thread that copies for that part of every period, from begin to end."""

    def written(content: Content) -> None:
        events = content["traceEvents"]
        operators = [event for event in events if event.get("cat") == "cpu_op"]
        at, end = (of(event["ts"] for event in operators) for of in (min, max))
        while at < end:
            copy = {"name": "aten::copy_", "tid": 987654, "ts": at, "dur": period_us * duty}
            events.append({"ph": "X", "cat": "cpu_op", "pid": operators[0]["pid"], **copy})
            at += period_us

    return written


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample", "ranks", "period_us", "duty"),
    [
        ("slow_operator", (1,), 1_000, 0.9),
        ("slow_operator", (0, 1, 2, 3), 40_000, 0.9),
        ("slow_input", (1,), 1_000, 0.9),
        ("slow_input", (0, 1, 2, 3), 7_000, 0.5),
        ("busy_host", (0, 1, 2, 3), 1_000, 0.9),
        ("healthy", (2,), 3_000, 0.8),
    ],
)
def test_it_accuses_nobody_and_moves_no_price(
    tmp_path: Path, sample: str, ranks: tuple[int, ...], period_us: float, duty: float
) -> None:
    changed = altered(tmp_path / "job", dict.fromkeys(ranks, writer(period_us, duty)), sample=sample)
    found, usual = triage(open_trace(changed, cache=tmp_path / "cache")), triaged(SAMPLES / sample)
    assert [(one.ranks, one.cause) for one in found.findings] == [(one.ranks, one.cause) for one in usual.findings]
    for one, other in zip(found.findings, usual.findings, strict=True):
        assert one.time_lost_us_per_step == pytest.approx(other.time_lost_us_per_step, rel=0.05)
