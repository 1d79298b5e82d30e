"""The first line of an answer is read in a pager or a chat: it fits, and its figures are those of the page below it."""

from pathlib import Path

import pytest
from support.answers import recorded, triaged
from support.places import CASES

from kair_engine.results.triage import TriageResult
from kair_tui.render.bar import drawn
from kair_tui.render.triage import triage_in_words, triage_totals
from kair_tui.render.units import percent

pytestmark = pytest.mark.slow
CASES2 = CASES.parent / "cases2"
LONGEST = 160
INPUTS = [
    one
    for one in sorted(CASES2.glob("*/input"))
    if not one.parent.name.endswith("_log") and one.parent.name != "elastic_killed_rank"
]


def answered(source: Path) -> TriageResult:
    recorded(source)
    return triage_in_words(triaged(source))


@pytest.mark.parametrize("source", INPUTS, ids=lambda one: one.parent.name)
def test_the_first_line_fits_and_rounds_as_the_bar_does(source: Path) -> None:
    told = answered(source)
    assert len(told.summary) <= LONGEST
    assert told.bar is not None
    shown = {one.part: percent(one.tenths / 1000) for one in drawn(told.bar, 1, ascii_only=True)}
    whom = "stragglers" if told.verdict == "straggler" else "the last rank"
    assert f"ranks wait {shown['stragglers']} of their time for {whom}" in triage_totals(told)
