"""What a triage says of what it leaves open: how much, on whom, in which steps, and what would settle it."""

from dataclasses import fields
from typing import Any, get_args

import pytest
from support.cli_samples import triage

from kair_engine.ranks import Rank
from kair_engine.results.step_bar import PartOfBar, StepBar
from kair_engine.results.triage import OpenItem, OpenKind, TriageResult
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


@pytest.mark.parametrize(
    ("one", "sentence", "settled_by"),
    [
        (
            item("unrecorded", 3),
            "rank 3 left no trace, and the others wait for it at least 3.60 of the 51.8 ms step (6.9 %)",
            "add the trace of rank 3",
        ),
        (
            item("unrecorded", 3, 5),
            "ranks 3 and 5 left no trace, and the others wait for them at least 3.60 of the 51.8 ms step (6.9 %)",
            "add the traces of ranks 3 and 5",
        ),
        (
            item("unmatched", 0, 1, where="mesh_tp"),
            "3.60 of the 51.8 ms step (6.9 %) went by in collectives in mesh_tp on ranks 0-1 that were not matched: "
            "who waits in them is unknown",
            "record the process group of each collective",
        ),
        (
            item("event", 0, steps=(19,), took_us=161_000.0, usual_us=24_000.0, operator="evaluation"),
            "step 19 took 161 ms instead of 24.0 ms: the others waited for rank 0 (evaluation)",
            "record more steps to see whether it returns",
        ),
        (
            item("event", 0, steps=(19,), took_us=161_000.0, usual_us=24_000.0, cause="compute", operator="evaluate"),
            "step 19 took 161 ms instead of 24.0 ms: the others waited for rank 0, which computed alone (evaluate)",
            "record more steps to see whether it returns",
        ),
        (
            item("event", 2, steps=(36,), took_us=297_000.0, usual_us=31_000.0, cause="compilation", operator=LONG),
            "step 36 took 297 ms instead of 31.0 ms: the others waited for rank 2, which compiled",
            "record more steps to see whether it returns",
        ),
        (
            item("event", steps=(7, 9), took_us=161_000.0, usual_us=24_000.0, cause="input", more_steps=24),
            "steps 7, 9 took up to 161 ms instead of 24.0 ms: all ranks were late together (input)",
            "record 24 more steps to see whether it returns",
        ),
        (
            item("event", 2, steps=(4,)),
            "step 4 took longer, 3.60 of the 51.8 ms step (6.9 %) over all steps: the others waited for rank 2",
            "record more steps to see whether it returns",
        ),
        (
            item("uneven", cause="compute"),
            "3.60 of the 51.8 ms step (6.9 %) is lost to uneven work (compute), on no rank in particular",
            "record the shapes of inputs to see why",
        ),
        (
            item("waiting", 5, more_steps=1),
            "the others wait 3.60 of the 51.8 ms step (6.9 %) for rank 5, and no test sets it apart",
            "record one more step",
        ),
        (
            item("waiting", 5, cause="host", replayed_us=300.0),
            "the others wait 3.60 of the 51.8 ms step (6.9 %) for rank 5 (host), which a test sets apart, but replayed "
            "without it a step is only 300 µs shorter",
            "compare with a healthy run (kair compare)",
        ),
        (
            item("waiting"),
            "ranks wait 3.60 of the 51.8 ms step (6.9 %) for one another, for no rank in particular",
            "record more steps",
        ),
        (
            item("changed", steps=(9, 10, 11), took_us=36_000.0, usual_us=24_000.0, where="rank 1 → rank 2"),
            "since step 9 a step takes 36.0 ms instead of 24.0 ms: rank 1 → rank 2",
            "record more steps before and after it",
        ),
        (
            item("changed", steps=(9, 10)),
            "since step 9 steps take longer, by 3.60 of the 51.8 ms step (6.9 %), on no rank in particular",
            "record more steps before and after it",
        ),
        (
            item("idle", 2),
            "what CUDA graphs run is not recorded, 3.60 of the 51.8 ms step (6.9 %) on rank 2",
            "record with nsys profile --cuda-graph-trace=node",
        ),
        (
            item("groups_differ", 4, 5, where="tp 1"),
            "ranks 4-5 (tp 1) take 3.60 of the 51.8 ms step (6.9 %) longer than the others, and which of both is usual "
            "is unknown",
            "compare with a healthy run (kair compare)",
        ),
        (
            item("no_peer", 7),
            "rank 7 was not compared with peers, and the others may wait 3.60 of the 51.8 ms step (6.9 %) for it",
            "compare with a healthy run (kair compare)",
        ),
        (
            item("few_steps", 3, cause="compute", more_steps=4),
            "rank 3 takes 3.60 of the 51.8 ms step (6.9 %) longer (compute), in all of too few steps for a test",
            "record 4 more steps",
        ),
    ],
)
def test_an_open_item_says_how_much_on_whom_and_what_settles_it(one: OpenItem, sentence: str, settled_by: str) -> None:
    told = open_in_words(one, STEP_US)
    assert (told.sentence, told.settled_by) == (sentence, settled_by)


@pytest.mark.parametrize("kind", get_args(OpenKind))
@pytest.mark.parametrize("ranks", [(), (3,), (0, 1, 2)])
def test_every_kind_has_a_sentence_whomever_it_is_about(kind: OpenKind, ranks: tuple[int, ...]) -> None:
    for step_us in (STEP_US, 0.0):
        told = open_in_words(item(kind, *ranks, steps=(4,)), step_us)
        assert told.settled_by
        assert "3.60" in told.sentence
        assert "  " not in told.sentence


def test_the_first_line_of_an_open_verdict_is_the_largest_item() -> None:
    small, large = item("waiting", 5, us_per_step=900.0), item("unrecorded", 3)
    said = summary(found(verdict="inconclusive", open=(small, large), step_time_us=STEP_US))
    assert said == (
        "inconclusive: rank 3 left no trace, and the others wait for it at least 3.60 of the 51.8 ms step (6.9 %); "
        "add the trace of rank 3; 1 smaller item is open"
    )


def test_what_a_recording_cannot_tell_comes_before_what_is_open() -> None:
    alone = KairWarning("one_rank", "one rank only")
    said = summary(found(verdict="inconclusive", open=(item("unrecorded", 3),), warnings=(alone,)))
    assert said.startswith("inconclusive: 2 ranks, 3 steps of 105 ms; one rank only; rank 3 left no trace, and ")


def test_where_nothing_can_be_tested_the_next_item_follows() -> None:
    whole = item("few_steps", us_per_step=STEP_US, share_of_step=1.0, more_steps=2)
    said = summary(found(verdict="inconclusive", open=(whole, item("waiting", 5, more_steps=2)), step_time_us=STEP_US))
    assert said == (
        "inconclusive: in so few steps a slow rank cannot be told from a slow moment; record 2 more steps; the others "
        "wait 3.60 of the 51.8 ms step (6.9 %) for rank 5, and no test sets it apart"
    )


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


def test_no_straggler_says_how_much_could_be_hidden() -> None:
    said = summary(found(verdict="no_straggler", smallest_share=0.037))
    assert said == "no straggler: 2 ranks, 3 steps of 105 ms; nothing of 4 % of the step or more is unexplained"


@pytest.mark.parametrize(("share", "words"), [(0.04, "4 %"), (0.0401, "5 %"), (0.0, "1 %")])
def test_the_share_that_could_be_hidden_is_rounded_up(share: float, words: str) -> None:
    assert nothing_hidden(share) == f"nothing of {words} of the step or more is unexplained"


def bar(**shares: float) -> StepBar:
    """The rest is compute."""
    all_shares = {"compute": 1 - sum(shares.values()), **shares}
    parts = tuple(PartOfBar(part, 1e5 * share, share) for part, share in all_shares.items())  # type: ignore[arg-type]
    return StepBar(1e5, parts, (), "one_program", 3)


def test_no_straggler_says_what_its_bar_shows() -> None:
    """A reader sees both: 38 % job-wide next to `no straggler` needs a word."""
    said = summary(found(verdict="no_straggler", bar=bar(job_wide=0.38, stragglers=0.07)))
    assert said.endswith(
        "; all ranks spend 38.0 % of the step on launches, input and waiting for cores; ranks wait 7.0 % of their "
        "time, now for one and now for another"
    )
    quiet = summary(found(verdict="no_straggler", bar=bar(job_wide=0.09, stragglers=0.04)))
    assert quiet.endswith("no rank differs from its peers beyond chance")


def test_a_name_that_the_first_line_has_no_room_for_stands_below_it() -> None:
    told = found(verdict="inconclusive", open=(item("event", 2, steps=(36,), cause="compilation", operator=LONG),))
    whole, below = open_lines(told), open_lines(told, below=summary(told))
    assert LONG not in summary(told)
    assert below == [f"open: in step 36 rank 2 ran {LONG} longest"]
    assert whole[0].endswith(f"; in step 36 rank 2 ran {LONG} longest")
