"""Summarises outcomes of predictions: in all, by cause, and for one cause next to a new price."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.results.ledger import CameOfCause, LedgerEntry, LedgerSummary
from kair_engine.results.triage import Finding, TrackRecord

FEWEST_CAME: Final = 5
"""Outcomes of a cause that are needed before they are shown with its prices."""


def summary_of(entries: Iterable[LedgerEntry]) -> LedgerSummary:
    """Return how many were made, came, and came true."""
    made = list(entries)
    return LedgerSummary(len(made), sum(one.has_come for one in made), sum(one.came == "came_true" for one in made))


def by_cause(entries: Iterable[LedgerEntry]) -> tuple[CameOfCause, ...]:
    """Return outcomes by cause, or action, the most often predicted first."""
    of = defaultdict[str, list[LedgerEntry]](list)
    for one in entries:
        of[one.about].append(one)
    return tuple(_came(*item) for item in sorted(of.items(), key=lambda item: (-len(item[1]), item[0])))


def _came(about: str, entries: Sequence[LedgerEntry]) -> CameOfCause:
    counts = {name: sum(one.came == name for one in entries) for name in ("came_true", "less", "more")}
    ratios = [one.ratio for one in entries if one.has_come and one.ratio is not None]
    return CameOfCause(
        about=about,
        predictions=len(entries),
        came=sum(counts.values()),
        **counts,
        open=sum(one.came == "open" for one in entries),
        not_comparable=sum(one.came == "not_comparable" for one in entries),
        median_ratio=float(np.median(ratios)) if ratios else None,
    )


def with_track_records(findings: Iterable[Finding], entries: Sequence[LedgerEntry]) -> tuple[Finding, ...]:
    """Return the findings, each with the outcomes of prices for its cause, if there are enough."""
    priced = [one for one in entries if one.kind == "finding" and one.has_come]
    return tuple(replace(one, track_record=_track_record(one.cause, priced)) for one in findings)


def _track_record(cause: str, priced: Sequence[LedgerEntry]) -> TrackRecord | None:
    came = [one.came for one in priced if one.about == cause]
    return TrackRecord(len(came), came.count("came_true")) if len(came) >= FEWEST_CAME else None
