"""A job's evidence for people: the sources, the accuracy of their clocks, and their gaps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kair_engine.results.evidence import EvidenceResult
from kair_engine.trace.measures import EvidenceSource
from kair_tui.render.answer import Column
from kair_tui.render.units import and_more, count, plural, utc
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page

_NAMED: Final = 8
"""Kinds of sources that a verdict names."""
_NOTES: Final = 20
"""Notes on sources that are shown without `-o wide`."""


def sources_in_words(sources: Sequence[EvidenceSource]) -> str:
    """Return `3 sources (dcgm every 30 s, kernel log, capture every 1 s)`, for a verdict."""
    of_kind: dict[str, list[EvidenceSource]] = defaultdict(list)
    for one in sources:
        of_kind[one.kind].append(one)
    kinds = [_kind(kind, alike) for kind, alike in of_kind.items()]
    more = f" and {count(len(kinds) - _NAMED)} kinds more" if len(kinds) > _NAMED else ""
    return f"{plural(len(sources), 'source')} ({', '.join(kinds[:_NAMED])}{more})"


def _kind(kind: str, alike: Sequence[EvidenceSource]) -> str:
    known = [one.interval_s for one in alike if one.interval_s is not None]
    number = f"{count(len(alike))} × " if len(alike) > 1 else ""
    every = " to ".join(dict.fromkeys(map(_seconds, (min(known), max(known))))) if known else ""
    return f"{number}{kind}" + (f" every {every}" if every else "")


def _headline(result: EvidenceResult) -> str:
    if result.action == "add":
        new = sum(not one.was_there for one in result.added)
        there = len(result.added) - new
        known = f"; {plural(there, 'file')} {'was' if there == 1 else 'were'} there already" if there else ""
        return f"{result.name}: {plural(new, 'file')} of evidence added{known}"
    if not result.sources:
        return f"{result.name}: no evidence next to the recording (kair evidence add {result.name} FILE keeps some)"
    rows = sum(one.rows for one in result.sources)
    return f"{result.name}: {plural(len(result.sources), 'source')} of evidence, {plural(rows, 'row')}"


def _body(result: EvidenceResult, page: Page) -> None:
    for one in result.added:
        there = ": it was there already" if one.was_there else ""
        page.line(f"{', '.join(one.kinds)}: {one.source} ({plural(one.rows, 'row')}){there}")
    if result.added:
        page.line()
    if not result.sources:
        return
    page.table(COLUMNS, result.sources)
    notes = notes_of(result.sources)
    shown = notes if page.options.wide else notes[:_NOTES]
    for note in shown:
        page.bullet(note)
    if len(notes) > len(shown):
        page.line(f"{plural(len(notes) - len(shown), 'note')} more with -o wide")
    if result.first_ns is not None and result.last_ns is not None:
        page.line(f"the recording is from {utc(result.first_ns)} to {utc(result.last_ns)} UTC")
    if result.outside:
        page.line(f"nothing of that time: {', '.join(result.outside)}")


def notes_of(sources: Sequence[EvidenceSource]) -> list[str]:
    """Return each note once, behind the first source that has it and how many others do."""
    named: dict[str, list[str]] = defaultdict(list)
    for one in sources:
        for note in one.notes:
            named[note].append(one.name)
    return [f"{names[0]}{and_more(len(names) - 1)}: {note}" for note, names in named.items()]


def _known(ns: int | None) -> str:
    return "–" if ns is None else utc(ns)


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 1000 else f"{value:.3g} s"


def _hosts(row: EvidenceSource) -> str:
    if not row.hosts:
        return "–"
    return ", ".join(row.hosts[:2]) + and_more(len(row.hosts) - 2)


def _interval(row: EvidenceSource) -> str:
    return "–" if row.interval_s is None else _seconds(row.interval_s)


def _gaps(row: EvidenceSource) -> str:
    return f"{count(row.gaps)}, up to {_seconds(row.longest_gap_s)}" if row.gaps else "none" if row.rows else "–"


COLUMNS = (
    Column[EvidenceSource]("name", "source", lambda row: row.name, align="left", weight=9),
    Column[EvidenceSource]("kind", "kind", lambda row: row.kind, align="left", weight=9),
    Column[EvidenceSource]("hosts", "hosts", _hosts, align="left", weight=6),
    Column[EvidenceSource]("clock", "clock", lambda row: row.clock, align="left", weight=6),
    Column[EvidenceSource](
        "bound_s", "off by up to", lambda row: "–" if row.bound_s is None else _seconds(row.bound_s), weight=5
    ),
    Column[EvidenceSource]("interval_s", "every", _interval, weight=8),
    Column[EvidenceSource]("gaps", "gaps", _gaps, align="left", weight=4),
    Column[EvidenceSource]("rows", "rows", lambda row: count(row.rows), weight=8),
    Column[EvidenceSource]("passed_over", "passed over", lambda row: count(row.passed_over), weight=3),
    Column[EvidenceSource]("first_ns", "from (UTC)", lambda row: _known(row.first_ns), align="left", weight=7),
    Column[EvidenceSource]("last_ns", "to (UTC)", lambda row: _known(row.last_ns), align="left", weight=7),
    Column[EvidenceSource](
        "observes", "would show", lambda row: ", ".join(row.observes) or "–", align="left", detail=True
    ),
)

VIEW = View[EvidenceResult, EvidenceSource](
    main="sources",
    columns=COLUMNS,
    headline=_headline,
    body=_body,
    records=(("sources", "source"), ("added", "added")),
)
