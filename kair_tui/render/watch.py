"""A running job for people: its ranks, the slow ones first, its hosts, alerts and samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kair_engine.results.stuck import silence
from kair_engine.results.watch import (
    FRESH_S,
    Alert,
    HangKind,
    JobState,
    WatchedHost,
    WatchedRank,
    WatchedWindow,
    WatchResult,
)
from kair_engine.results.whatif import ERROR_GATE
from kair_engine.results.windows import HIGH, PricedWindow
from kair_tui.render.answer import ALARM, Cell, Column, Styled
from kair_tui.render.units import (
    count,
    duration,
    or_dash,
    percent,
    plural,
    ranks_in_words,
    score,
    signed_duration,
    slowdown,
    spans,
    thinned,
)
from kair_tui.render.verdict import verdict_in_words
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page

RANKS_SHOWN: Final = 20, 8
"""Usually, and on a screen with few lines; likewise below."""
SLOWEST_SHOWN: Final = 5, 3
"""Ranks whose S_w is shown over time: the heat map has the others."""
HOSTS_SHOWN: Final = 10, 4
ALERTS_SHOWN: Final = 8, 2
PRICED_SHOWN: Final = 20, 4
WINDOWS_SHOWN: Final = 5
STATES: Final = {
    "waiting": "waiting for the first steps",
    "training": "training",
    "stalled": "no step has ended lately",
    "over": "over",
    "failed": "it ended abnormally",
    "unattended": "unattended: its coordinator no longer writes",
}


def state_in_words(state: JobState, hang: HangKind | None) -> str:
    """Return how the job goes; `hang`: what is known of where it stopped, None where it goes on.

    A job whose ranks stood still did not end by itself: whatever ended it came after.
    """
    if hang == "stalled" and state == "failed":
        return "it hung until its last report"
    return "it hangs: no step has ended lately" if hang == "stalled" and state == "stalled" else STATES[state]


def alert_in_words(alert: Alert) -> str:
    """Return an alert with its step and its size."""
    from kair_capture.coordinator.alert_text import in_words

    return in_words(alert)


def _headline(result: WatchResult) -> str:
    hang = None if result.hang is None or result.hang.over else result.hang
    stands = f"{hang.told}; " if hang is not None and hang.told else ""
    parts = [f"{result.job}: {stands}{state_in_words(result.state, None if hang is None else hang.kind)}"]
    if silent := silence(result):
        parts.append(silent)
    if result.age_s > FRESH_S:
        parts.append(f"figures are {result.age_s:.0f} s old")
    if result.unwritten_because is not None:
        parts.append(result.unwritten_because)
    if result.control.get("capture") == "off":
        parts.append("capture is off")
    if result.attempt > 1:
        parts.append(f"attempt {result.attempt}")
    if result.step >= 0:
        parts.append(f"step {result.step}")
    if result.step_time_us is not None:
        parts.append(f"{duration(result.step_time_us)} a step (median of the last 20)")
    if result.unheard_because is not None:
        return f"{', '.join(parts)}: {result.unheard_because}"
    slow = tuple(row.rank for row in result.ranks if row.slow)
    if slow and (hang is None or hang.kind == "ended"):
        parts.append(f"{ranks_in_words(slow)} {'is' if len(slow) == 1 else 'are'} slow")
    return ", ".join(parts)


def _excess(row: WatchedRank) -> str:
    return "–" if row.self_time_excess is None else f"{row.self_time_excess:+.1%}".replace("%", " %")


def _excess_among_peers(row: WatchedRank) -> str:
    past = "" if row.has_peers or row.self_time_excess is None else " of its past"
    return _excess(row) + past


def _excess_of_step(row: WatchedRank) -> str:
    if row.excess_us is None or row.excess_of_step is None:
        return "–"
    return f"{signed_duration(row.excess_us)} ({percent(row.excess_of_step)})"


def _time(us: float | None) -> str:
    return "–" if us is None else duration(us)


def _clock(row: WatchedHost) -> str:
    if row.clock_bound_us is None or row.clock_offset_us is None:
        return "–"
    return f"{signed_duration(row.clock_offset_us)} ± {duration(row.clock_bound_us)}"


def _mark(row: WatchedRank) -> Cell:
    return Styled("▲ slow", ALARM) if row.slow else "evened out" if row.evened_out else ""


def _missed(row: WatchedWindow) -> Cell:
    return Styled(ranks_in_words(row.missed), ALARM) if row.missed else "–"


COLUMNS = (
    Column[WatchedRank]("rank", "rank", lambda row: str(row.rank), weight=9),
    Column[WatchedRank]("host", "host", lambda row: row.host or "–", align="left", weight=6),
    Column[WatchedRank]("step", "step", lambda row: str(row.step), weight=7),
    Column[WatchedRank]("step_time_us", "step time", lambda row: _time(row.step_time_us), weight=5),
    Column[WatchedRank]("self_time_us", "self time", lambda row: _time(row.self_time_us), weight=8),
    Column[WatchedRank]("samples", "samples", lambda row: "–" if row.samples is None else f"{row.samples:g}", weight=7),
    Column[WatchedRank]("sample_time_us", "a sample", lambda row: _time(row.sample_time_us), weight=8),
    Column[WatchedRank]("self_time_excess", "than peers", _excess_among_peers, weight=9),
    Column[WatchedRank]("excess_us", "excess per step", _excess_of_step, weight=8),
    Column[WatchedRank]("z", "z", lambda row: score(row.z), weight=6),
    Column[WatchedRank]("role", "role", lambda row: row.role if row.role != "all" else "–", align="left", weight=4),
    Column[WatchedRank]("slow", "", _mark, align="left", weight=9),
)
_OF_PAST = tuple(
    Column[WatchedRank](one.key, "than its own past", _excess, weight=9) if one.key == "self_time_excess" else one
    for one in COLUMNS
)
_HOSTS = (
    Column[WatchedHost]("host", "host", lambda row: row.host, align="left", weight=9),
    Column[WatchedHost]("ranks", "ranks", lambda row: count(row.ranks), weight=6),
    Column[WatchedHost]("heard_s_ago", "heard", lambda row: f"{row.heard_s_ago:.1f} s ago", weight=5),
    Column[WatchedHost]("clock_offset_us", "clock", _clock, weight=8),
    Column[WatchedHost]("drops", "dropped", lambda row: count(row.drops), weight=5),
    Column[WatchedHost]("spooled", "waiting", lambda row: count(row.spooled), weight=5),
    Column[WatchedHost]("silent", "", lambda row: Styled("▲ silent", ALARM) if row.silent else "", weight=9),
)
_WINDOWS = (
    Column[WatchedWindow]("first_step", "sampled", lambda row: f"{row.first_step}-{row.last_step}", weight=9),
    Column[WatchedWindow]("ranks", "ranks", lambda row: count(len(row.ranks)), weight=6),
    Column[WatchedWindow]("why", "why", lambda row: row.why, align="left", weight=7),
    Column[WatchedWindow]("state", "", lambda row: row.state, align="left", weight=8),
    Column[WatchedWindow]("missed", "missed by", _missed, align="left", weight=8),
)


def _steps(row: PricedWindow) -> str:
    return spans(tuple(range(row.first_step, row.last_step + 1)))


def _slowest(row: PricedWindow) -> str:
    rank = next(iter(row.by_rank), None)
    return "–" if rank is None else f"{rank} (S_w {slowdown(row.by_rank[rank])})"


def _of_price(row: PricedWindow) -> Cell:
    """Return whether a high S alerts, and why."""
    if row.is_high:
        return Styled("▲ high", ALARM)
    if row.simulation_error > ERROR_GATE:
        return f"replay error {percent(row.simulation_error)}"
    return "within noise" if row.slowdown >= HIGH else ""


PRICED = (
    Column[PricedWindow]("first_step", "sampled", _steps, weight=9),
    Column[PricedWindow]("at", "at", lambda row: row.at[11:19], align="left", weight=5),
    Column[PricedWindow](
        "slowdown", "S", lambda row: Styled(slowdown(row.slowdown), ALARM if row.is_high else ""), weight=9
    ),
    Column[PricedWindow]("m_w", "M_W", lambda row: or_dash(row.m_w, percent), weight=8),
    Column[PricedWindow]("by_rank", "slowest rank", _slowest, align="left", weight=8),
    Column[PricedWindow]("verdict", "verdict", lambda row: verdict_in_words(row.verdict), align="left", weight=8),
    Column[PricedWindow]("is_high", "", _of_price, align="left", weight=7),
)


def high_in_words(windows: Sequence[PricedWindow]) -> str:
    """Return the number of windows with a high S."""
    high = sum(one.is_high for one in windows)
    return f"S is {HIGH:g} or more beyond noise in {high} of {plural(len(windows), 'window')} of sampled steps"


def _priced(windows: Sequence[PricedWindow], page: Page) -> None:
    """Write S of each window, the last one first, then S_w of the slowest ranks over time."""
    page.line(high_in_words(windows))
    page.table(PRICED, windows[::-1], limit=page.options.limit(*PRICED_SHOWN))
    page.line()
    page.line("S_w over time (a row per rank, the slowest of the last window first)")
    columns = slowdowns_over_time(windows[-WINDOWS_SHOWN:])
    page.table(columns, [*windows[-1].by_rank], limit=page.options.limit(*SLOWEST_SHOWN))


def _last_heatmap(last: PricedWindow, page: Page) -> None:
    """Draw S_w of all workers in the last window."""
    from kair_tui.render.whatif import draw_heatmap

    page.line()
    page.line(f"steps {_steps(last)}")
    draw_heatmap(last.heatmap, len(last.by_rank), page, staged=last.staged)


def slowdowns_over_time(windows: Sequence[PricedWindow]) -> tuple[Column[int], ...]:
    """Return columns of a rank's S_w: one for each window."""
    return (Column[int]("rank", "rank", str, weight=9), *map(_column_of, windows))


def price_text(window: PricedWindow) -> str:
    """Return one window in a line: `steps 34-40: S 1.29, M_W 93 %, slowest rank 17 (S_w 1.27), straggler`."""
    parts = (
        f"S {slowdown(window.slowdown)}",
        "" if window.m_w is None else f"M_W {percent(window.m_w)}",
        f"slowest rank {_slowest(window)}" if window.by_rank else "",
        verdict_in_words(window.verdict),
        "" if window.simulation_error <= ERROR_GATE else f"replay error {percent(window.simulation_error)}",
    )
    return f"steps {_steps(window)}: {', '.join(filter(None, parts))}"


def _column_of(window: PricedWindow) -> Column[int]:
    """Return the column of each rank's S_w in one window."""

    def cell(rank: int) -> Cell:
        found = window.by_rank.get(rank)
        return "–" if found is None else Styled(slowdown(found), ALARM if found >= HIGH else "")

    return Column[int](_steps(window), _steps(window), cell, weight=5)


def _body(result: WatchResult, page: Page) -> None:
    """Write the most important first: a screen with few lines shows no more."""
    if (triage := result.triage) is not None:
        page.line(f"triage of the steps up to {triage.step}: {triage.summary}")
        page.line()
    if result.priced_windows:
        _priced(result.priced_windows, page)
        page.line()
    for alert in result.alerts[-page.options.limit(*ALERTS_SHOWN) :]:
        page.line(f"{alert.at[11:19]}  {alert_in_words(alert)}")
    if result.alerts:
        page.line()
    ranks = sorted(result.ranks, key=lambda row: (not row.slow, -row.z, row.rank))
    columns = _OF_PAST if ranks and not any(row.has_peers for row in ranks) else COLUMNS
    page.table(columns, ranks, limit=page.options.limit(*RANKS_SHOWN))
    if (short := thinned(result.parts_every)) is not None:
        page.line(short)
    if result.unwritten_since is not None:
        page.line(f"since {result.unwritten_since[:19]} UTC step times cannot be written: nothing later is shown")
    if result.moved_at_step is not None:
        page.line(f"the job's folder in the store was replaced before step {result.moved_at_step}")
    page.line()
    hosts = sorted(result.hosts, key=lambda row: (not row.silent, -(row.clock_bound_us or 0), row.host))
    page.table(_HOSTS, hosts, limit=page.options.limit(*HOSTS_SHOWN))
    page.line()
    _sampling(result, page)
    if result.priced_windows:
        _last_heatmap(result.priced_windows[-1], page)


def _sampling(result: WatchResult, page: Page) -> None:
    """Write the sampling's share of the job's time, its settings, and the last windows."""
    sampling = result.sampling
    page.line(
        f"sampling took {percent(sampling.overhead, 2)} of the time, at most {percent(sampling.max_overhead, 2)} are "
        f"allowed; {plural(sampling.fragments, 'recording')} of sampled ranks in the store"
    )
    if result.control:
        page.line(f"set by hand: {', '.join(f'{key}={value}' for key, value in result.control.items())}")
    if sampling.owed_us > 0:
        page.line(
            f"it is {duration(sampling.owed_us)} over its budget: until the job has run long enough for that, ranks "
            "are sampled only when asked"
        )
    if (every := max((host.sampled_every for host in result.hosts), default=0)) > 0:
        page.line(f"ranks also sample one step in {count(every)} by themselves")
    if sampling.windows:
        page.table(_WINDOWS, sampling.windows[-WINDOWS_SHOWN:])


VIEW = View[WatchResult, WatchedRank](
    main="ranks",
    columns=COLUMNS,
    headline=_headline,
    body=_body,
    records=(("ranks", "rank"), ("hosts", "host"), ("alerts", "alert"), ("priced_windows", "window")),
)
