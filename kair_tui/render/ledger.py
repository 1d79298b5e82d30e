"""The ledger for people: predictions that came true, by cause; each of them; and units that are repeatedly slow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kair_engine.causes import CAUSES
from kair_engine.results.ledger import CameOfCause, LedgerEntry, LedgerResult, LedgerSummary, WhyNotComparable
from kair_engine.results.triage import DeviceRecord, TrackRecord
from kair_tui.render.answer import ALARM, Column, Styled
from kair_tui.render.store import minute
from kair_tui.render.units import count, duration, percent, plural, ranks_in_words, ratio
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page

_SHOWN: Final = 20
WITHIN_IN_WORDS: Final = "10 %"
_KINDS: Final[Mapping[str, str]] = {"device": "device", "host": "host", "nic": "link"}
_CAME: Final[Mapping[str, str]] = {
    "came_true": "came true",
    "less": "less",
    "more": "more",
    "open": "open",
    "not_comparable": "not comparable",
}
_WHY: Final[Mapping[WhyNotComparable, str]] = {
    "few_steps": "too few steps",
    "noisy": "steps differ too much",
    "other_samples": "other numbers of samples",
    "other_work": "nothing shows that a step does the same work",
    "other_world_size": "other number of ranks",
    "other_framework": "other framework",
    "together": "ended together with another",
}
_WITHOUT: Final[Mapping[str, str]] = {
    "same_run": "the same run",
    "next_attempt": "the next attempt",
    "next_job": "the next job",
}


def came_in_words(summary: LedgerSummary) -> str:
    """Return `23 predictions, 19 within 10 %` for those that came, and the number of others."""
    if not summary.came:
        return f"{plural(summary.predictions, 'prediction')}, none can be checked yet"
    left = summary.predictions - summary.came
    more = f"; {count(left)} more {'is' if left == 1 else 'are'} open or not comparable" if left else ""
    return f"{plural(summary.came, 'prediction')}, {count(summary.came_true)} within {WITHIN_IN_WORDS}{more}"


def track_record_in_words(record: TrackRecord) -> str:
    """Return the outcome of earlier prices, for use next to a price."""
    return (
        f"of {count(record.came)} earlier predictions for this cause {count(record.came_true)} came true within "
        f"{WITHIN_IN_WORDS}"
    )


def record_in_words(record: DeviceRecord) -> str:
    """Return `GPU-5f3e… was 3.1 % slower than its peers in 7 of 9 jobs since 2026-11-02 (driver 570 before: …)`."""
    of = f"{_KINDS[record.kind]} " if record.kind != "device" else ""
    whose = f"{ranks_in_words(record.ranks)}: " if record.ranks else ""
    since = "" if record.since is None else f" since {record.since[:10]}"
    before = ""
    if record.since is not None:
        driver = f"driver {record.driver_before} " if record.driver_before is not None else ""
        before = f" ({driver}before: {count(record.slow_before)} of {count(record.jobs_before)})"
        since += f", with driver {record.driver_since}" if record.driver_since is not None else ""
    notes = []
    if record.by_address:
        notes.append("known by its address alone")
    if record.always_rank is not None:
        notes.append(f"always as rank {record.always_rank}, so its own work may be the cause")
    remarks = f"; {'; '.join(notes)}" if notes else ""
    return (
        f"{whose}{of}{record.name} was {percent(record.slow_share)} of the step slower than its peers in "
        f"{count(record.slow_in)} of {plural(record.jobs, 'job')}{since}{before}{remarks}"
    )


def about_in_words(about: str) -> str:
    """Return a cause's name in a sentence; an action without underscores."""
    return CAUSES[about].words if about in CAUSES else about.replace("_", " ")


def _who(row: LedgerEntry) -> str:
    if row.kind == "proposal":
        return f"proposal {row.number}"
    return ranks_in_words(row.ranks) if row.ranks else "all ranks"


def _came(row: LedgerEntry) -> str | Styled:
    words = _CAME[row.came] + (f": {_WHY[row.why]}" if row.why is not None else "")
    return Styled(words, ALARM) if row.came in ("less", "more") else words


def _without(row: LedgerEntry) -> str:
    if row.without is None:
        return "–"
    run = f" ({row.without_run})" if row.without_run else ""
    since = f" since step {row.from_step}" if row.from_step is not None else ""
    return f"{_WITHOUT[row.without]}{run}{since}"


def _us(value: float | None) -> str:
    return "–" if value is None else duration(value)


COLUMNS = (
    Column[LedgerEntry]("job", "job", lambda row: row.job, align="left", weight=9),
    Column[LedgerEntry]("about", "cause", lambda row: about_in_words(row.about), align="left", weight=8),
    Column[LedgerEntry]("ranks", "who", _who, align="left", weight=8),
    Column[LedgerEntry]("predicted_us", "predicted/step", lambda row: duration(row.predicted_us), weight=9),
    Column[LedgerEntry]("actual_us", "came/step", lambda row: _us(row.actual_us), weight=9),
    Column[LedgerEntry]("noise_us", "±", lambda row: _us(row.noise_us), weight=5),
    Column[LedgerEntry]("ratio", "ratio", lambda row: "–" if row.ratio is None else ratio(row.ratio), weight=6),
    Column[LedgerEntry]("came", "", _came, align="left", weight=9),
    Column[LedgerEntry]("without", "ran without it", _without, align="left", weight=4),
    Column[LedgerEntry]("at", "predicted (UTC)", lambda row: minute(row.at), align="left", weight=3),
    Column[LedgerEntry]("run", "run", lambda row: row.run, align="left", detail=True),
    Column[LedgerEntry]("hosts", "hosts", lambda row: ", ".join(row.hosts), align="left", detail=True),
    Column[LedgerEntry]("devices", "devices", lambda row: ", ".join(row.devices), align="left", detail=True),
)

CAUSE_COLUMNS = (
    Column[CameOfCause]("about", "cause", lambda row: about_in_words(row.about), align="left", weight=9),
    Column[CameOfCause]("predictions", "predictions", lambda row: count(row.predictions), weight=8),
    Column[CameOfCause]("came_true", f"within {WITHIN_IN_WORDS}", lambda row: count(row.came_true), weight=9),
    Column[CameOfCause]("less", "less", lambda row: count(row.less), weight=8),
    Column[CameOfCause]("more", "more", lambda row: count(row.more), weight=8),
    Column[CameOfCause]("open", "open", lambda row: count(row.open), weight=7),
    Column[CameOfCause]("not_comparable", "not comparable", lambda row: count(row.not_comparable), weight=6),
    Column[CameOfCause](
        "median_ratio",
        "came over predicted",
        lambda row: "–" if row.median_ratio is None else ratio(row.median_ratio),
        weight=7,
    ),
)


def _headline(result: LedgerResult) -> str:
    if not result.entries:
        return f"nothing was predicted of the jobs of the store {result.store} yet (kair triage JOB predicts)"
    return came_in_words(result.summary)


def _body(result: LedgerResult, page: Page) -> None:
    if result.entries:
        page.table(CAUSE_COLUMNS, result.causes)
        page.line()
        page.table(COLUMNS, result.entries, limit=_SHOWN)
    if result.records:
        page.line()
        for record in result.records:
            page.bullet(f"{record_in_words(record)}; by chance {_chance(record)}")


def _chance(record: DeviceRecord) -> str:
    return f"below {percent(record.chance, 2)}" if record.chance >= 0.0001 else f"below {percent(0.0001, 2)}"


VIEW = View[LedgerResult, LedgerEntry](
    main="entries",
    columns=COLUMNS,
    headline=_headline,
    body=_body,
    records=(("entries", "prediction"), ("causes", "cause"), ("records", "record")),
)
