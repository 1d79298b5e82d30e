"""What a triage says of what it leaves open: how much, on whom, in which steps, and what would settle it."""

from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from support.cli_samples import triage
from support.kept_cases import KeptCase, assert_kept, kept_cases

from kair_engine.ranks import Rank
from kair_engine.results.step_bar import PartOfBar, StepBar
from kair_engine.results.triage import OpenItem, OpenKind, SmallestSeen, TriageResult
from kair_engine.trace.model import KairWarning
from kair_tui.render.answer import PageOptions
from kair_tui.render.open_items import nothing_hidden, open_in_words, open_lines
from kair_tui.render.page import Page
from kair_tui.render.triage import VIEW, triage_in_words
from kair_tui.render.verdict import summary

STEP_US = 51_800.0
LONG = "_compile.compile_inner (dynamo_timed)"


def item(kind: OpenKind, *ranks: int, **changed: Any) -> OpenItem:  # noqa: ANN401
    """3.6 of a step of 51.8 ms."""
    figures: dict[str, Any] = {"steps": (), "us_per_step": 3_600.0, "share_of_step": 3_600 / STEP_US} | changed
    return OpenItem(kind=kind, ranks=tuple(map(Rank, ranks)), **figures)


def found(**changed: Any) -> TriageResult:  # noqa: ANN401
    """An answer without findings, of 2 ranks in 3 steps of 105 ms."""
    told = vars(triage("mlp")) | {"findings": (), "warnings": ()} | changed
    return TriageResult(**{field.name: told[field.name] for field in fields(TriageResult)})


@pytest.mark.parametrize("case", kept_cases("open_items"), ids=str)
def test_an_open_item_says_how_much_on_whom_and_what_settles_it(case: KeptCase) -> None:
    kind, ranks, *figures = case.given.items()
    told = open_in_words(item(kind[1], *ranks[1], **dict(figures)), STEP_US)
    case.assert_said([told.sentence, told.settled_by])


@pytest.mark.parametrize("kind", get_args(OpenKind))
@pytest.mark.parametrize("ranks", [(), (3,), (0, 1, 2)])
def test_every_kind_has_a_sentence_whomever_it_is_about(kind: OpenKind, ranks: tuple[int, ...]) -> None:
    for step_us in (STEP_US, 0.0):
        told = open_in_words(item(kind, *ranks, steps=(4,)), step_us)
        assert told.settled_by
        assert "3.60" in told.sentence
        assert "  " not in told.sentence


def bar(**shares: float) -> StepBar:
    """The rest is compute."""
    all_shares = {"compute": 1 - sum(shares.values()), **shares}
    parts = tuple(PartOfBar(part, 1e5 * share, share) for part, share in all_shares.items())  # type: ignore[arg-type]
    return StepBar(1e5, parts, (), "one_program", 3)


SMALL, LARGE = item("waiting", 5, us_per_step=900.0), item("unrecorded", 3)
UNTESTED = item("few_steps", us_per_step=STEP_US, share_of_step=1.0, more_steps=2)
ANSWERS: dict[str, dict[str, Any]] = {
    "the largest item first": {"open": (SMALL, LARGE), "step_time_us": STEP_US},
    "what a recording cannot tell before what is open": {
        "open": (LARGE,),
        "warnings": (KairWarning("one_rank", "one rank only"),),
    },
    "where nothing can be tested the next item follows": {
        "open": (UNTESTED, item("waiting", 5, more_steps=2)),
        "step_time_us": STEP_US,
    },
    "how much could be hidden": {"verdict": "no_straggler", "smallest_share": 0.037},
    "what its bar shows": {"verdict": "no_straggler", "bar": bar(job_wide=0.38, stragglers=0.07)},
    "a bar that shows little": {"verdict": "no_straggler", "bar": bar(job_wide=0.09, stragglers=0.04)},
}


def test_the_first_line_of_an_open_verdict_and_of_none() -> None:
    said = {name: summary(found(**{"verdict": "inconclusive", **changed})) for name, changed in ANSWERS.items()}
    assert_kept("open_summaries", said)


def test_all_open_items_stand_below_the_findings_and_in_every_table() -> None:
    items = (item("unrecorded", 3), item("waiting", 5, us_per_step=900.0))
    told = triage_in_words(found(verdict="inconclusive", open=items, step_time_us=STEP_US))
    page = Page(PageOptions(width=200))
    assert VIEW.body is not None
    VIEW.body(told, page)
    lines = [told.summary, *(line for line in page.getvalue().splitlines() if line.startswith("open: "))]
    first, second = (f"{one.sentence}; {one.settled_by}" for one in told.open)
    assert lines == [f"inconclusive: {first}; 1 smaller item is open", f"open: {second}"]
    assert VIEW.csv is not None
    rows = [row for row in VIEW.csv.rows(told) if row.record == "open"]
    assert [(row.number, row.ranks, row.time_lost_us_per_step) for row in rows] == [(1, (3,), 3600.0), (2, (5,), 900.0)]


@pytest.mark.parametrize(("share", "words"), [(0.04, "4 %"), (0.0401, "5 %"), (0.0, "1 %")])
def test_the_share_that_could_be_hidden_is_rounded_up(share: float, words: str) -> None:
    assert nothing_hidden(share) == f"each unexplained part is below {words} of the step"


def test_a_name_that_the_first_line_has_no_room_for_stands_below_it() -> None:
    told = found(verdict="inconclusive", open=(item("event", 2, steps=(36,), cause="compilation", operator=LONG),))
    whole, below = open_lines(told), open_lines(told, below=summary(told))
    assert LONG not in summary(told)
    assert below == [f"open: in step 36 rank 2 ran {LONG} longest"]
    assert whole[0].endswith(f"; in step 36 rank 2 ran {LONG} longest")


def test_what_a_history_would_have_shown_stands_below_what_is_nobody_s_fault() -> None:
    seen = SmallestSeen(us_per_step=1640.0, share_of_step=0.032, steps=659)
    shared = found(verdict="job_wide", unseen=seen)
    line = "in the history of 659 steps a rank slower by 1.64 ms (3.2 %) in every step would have been seen"
    assert open_lines(shared) == [line]
    assert open_lines(replace(shared, verdict="no_straggler")) == [], "its first line says so"
    assert line in summary(replace(shared, verdict="no_straggler", findings=()))
