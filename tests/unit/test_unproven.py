"""Large delays that are too few to accuse anybody: the verdict is left open, and says whom to look at."""

from pathlib import Path

import numpy as np
import pytest
from support.excess_builder import HOST, INPUT, STEP_NS, Percents, job, nothing
from support.trace_builder import trace

from kair_engine.localize.analysis import localize
from kair_engine.localize.large_delays import large_delays
from kair_engine.localize.localization import conclude
from kair_engine.localize.moments import Moment, events
from kair_engine.triage.analysis import triage
from kair_tui.render.verdict import summary


def delayed(cells: dict[tuple[int, int], float], *, steps: int = 6, ranks: int = 4, row: int = HOST) -> Percents:
    """Excesses by (step, rank), in percent of the step."""
    percents = nothing(steps, ranks)
    for (step, rank), percent in cells.items():
        percents[step, row, rank] = percent
    return percents


def events_in(percents: Percents) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(ranks, steps) of each."""
    found = conclude(job(percents))
    assert found.anomalies == ()
    return [(one.positions, one.hit) for one in found.events]


def test_a_costly_delay_is_an_event_of_its_rank_and_step() -> None:
    found = conclude(job(delayed({(2, 3): 40}, row=INPUT)))
    assert (found.anomalies, found.undecided) == ((), ())
    # 40 % of one step of six.
    assert found.events == (Moment((3,), INPUT, (2,), pytest.approx(0.4 * STEP_NS / 6)),)


@pytest.mark.parametrize("cells", [{}, {(2, 3): 9}], ids=["none", "less than a tenth of a step"])
def test_what_is_no_event(cells: dict[tuple[int, int], float]) -> None:
    assert events_in(delayed(cells)) == []


def test_events_are_of_each_rank() -> None:
    assert events_in(delayed({(1, 3): 15, (4, 3): 15, (3, 0): 15}, steps=12)) == [((0,), (3,)), ((3,), (1, 4))]


def test_a_rank_that_was_found_already_has_no_event() -> None:
    made = job(delayed({(2, 3): 40}))
    assert [one.positions for one in events(made, ())] == [(3,)]
    assert list(events(made, {3})) == []


def test_large_delays_are_steps_that_take_a_tenth_longer() -> None:
    # Of a step without its own largest delay: 12 of 88 and 9 of 91, 30 and 6.9 of 70.
    percents = delayed({(0, 1): 12, (1, 1): 9, (2, 1): 30, (2, 3): 6.9, (4, 4): 11}, ranks=6)
    percents[3, [HOST, INPUT], 2] = 6  # together 12 %
    assert large_delays(job(percents)).tolist() == [0, 2, 1, 0, 1, 0]


def test_what_is_usual_on_the_ranks_is_no_large_delay() -> None:
    """Steps that vary by 8 % have a tenth more now and then: an event lies five deviations out, too."""
    percents = nothing(20, 6)
    percents[:, HOST] = np.random.default_rng(4).normal(0, 8, (20, 6))
    percents[7, HOST, 2] += 60
    assert (percents[:, HOST] > 10).sum() > 5
    assert large_delays(job(percents)).tolist() == [0, 0, 1, 0, 0, 0]


def test_a_rank_that_is_slow_for_good_is_measured_from_there() -> None:
    percents = delayed({(5, 3): 30}, steps=12)
    percents[:, HOST, 3] += 15
    assert large_delays(job(percents)).tolist() == [0, 0, 0, 1]


def test_a_step_that_a_rank_lacks_is_no_delay() -> None:
    percents = delayed({(0, 1): 12})
    percents[1, :, 1] = np.nan
    assert large_delays(job(percents)).tolist() == [0, 1, 0, 0]


def short_recording() -> str:
    """Six steps of five ranks; rank 0 is slower by a hair in each, rank 3 by 50 µs of 150 in one."""
    lines = []
    for step in range(6):
        begin = 1000 * step
        lines.append(f"step {step}: {begin}+150")
        for rank in range(5):
            took = 100 + step + (0.5 if rank == 0 else 0.1 * rank) + (50 if (step, rank) == (2, 3) else 0)
            end = begin + (160 if step == 2 else 120)
            lines.append(f"{rank} gpu7 | gemm {begin}+{took} | allreduce@dp#{step} {begin + took}+{end - begin - took}")
    return "\n".join(lines)


def test_the_verdict_is_open_and_names_the_rank(tmp_path: Path) -> None:
    made = trace(tmp_path, short_recording())
    result = triage(made)
    assert (result.verdict, result.findings) == ("inconclusive", ())
    assert "step 2" in summary(result)
    assert "rank 3" in summary(result)
    assert [(one.kind, one.ranks, one.steps, one.cause) for one in result.open] == [("event", (3,), (2,), "compute")]
    # Rank 0 has the higher score, of a difference that does not matter.
    assert [row.rank for row in result.ranking[:2]] == [3, 0]
    assert result.ranking[1].score > result.ranking[0].score
    assert not any(row.flagged for row in result.ranking)
    assert {score.rank: score.large_delays for score in localize(made).scores} == {0: 0, 1: 0, 2: 0, 3: 1, 4: 0}
