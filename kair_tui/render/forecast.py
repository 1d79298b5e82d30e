"""The noise forecast in words: one sentence, and a row for each number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kair_engine.results.forecast import ForecastResult, NoiseForecast, NoiseKind, SynchronisedBy, WhyNoForecast
from kair_tui.render.answer import Column
from kair_tui.render.units import (
    count,
    duration,
    exact_percent,
    mean_of,
    percent,
    plural,
    ranks_in_words,
    whole_percent,
)
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page

_WHY: Final[dict[WhyNoForecast, str]] = {
    "too_far": "more than a hundred times the recorded ranks",
    "few_values": "too few steps for so many ranks",
}
_WORDS: Final[dict[NoiseKind, str]] = {
    "compute": "compute",
    "input": "input",
    "host": "host",
    "communication": "communication",
    "garbage_collection": "garbage collection",
    "no_core": "no core",
    "asleep": "sleeping threads",
    "shared_by_host": "what hosts share",
    "lasting": "lasting differences",
}
_MODEL: Final[dict[SynchronisedBy, str]] = {
    "collective": "ranks wait for the last one in {meetings} of each step",
    "step": "ranks wait for the last one once a step: it holds up all of the step's collectives",
    "own_times": "ranks wait for the last one once a step, by their own times",
    "history": "ranks wait for the last one once a step, by their own times in the history of steps",
}


def _headline(result: ForecastResult) -> str:
    known = [one for one in result.forecasts if one.lost_share is not None]
    healthy = "healthy rank" if result.left_out else "rank"
    recorded = f"{percent(result.lost_share)} ({plural(result.recorded_ranks, healthy)})"
    if not known:
        first = result.forecasts[0]
        why = "" if first.why_none is None else f": {_WHY[first.why_none]}"
        return f"no forecast for {count(first.ranks)} ranks{why}; today ordinary noise costs this job {recorded}"
    most = known[-1]
    part = "" if not most.causes else f", {percent(most.causes[0].lost_share)} of it by {_WORDS[most.causes[0].kind]}"
    return (
        f"at {count(most.ranks)} ranks this job would lose {percent(most.lost_share or 0.0)} of the step to ordinary "
        f"noise{part} ({exact_percent(result.level)} interval {_interval(most)}); today it loses {recorded}"
    )


def _lost(one: NoiseForecast) -> str:
    return "no forecast" if one.lost_share is None else percent(one.lost_share)


def _interval(one: NoiseForecast) -> str:
    if one.least_share is None or one.most_share is None:
        return "–" if one.why_none is None else _WHY[one.why_none]
    return f"{percent(one.least_share)} – {percent(one.most_share)}"


def _causes(one: NoiseForecast) -> str:
    shown = [cause for cause in one.causes if cause.lost_share >= 0.0005]
    return ", ".join(f"{_WORDS[cause.kind]} {percent(cause.lost_share)}" for cause in shown) or "–"


COLUMNS = (
    Column[NoiseForecast]("ranks", "ranks", lambda row: count(row.ranks), weight=9),
    Column[NoiseForecast]("lost_share", "lost", _lost, weight=9),
    Column[NoiseForecast]("most_share", "interval", _interval, align="left", weight=8),
    Column[NoiseForecast](
        "step_time_us",
        "predicted step",
        lambda row: "–" if row.step_time_us is None else duration(row.step_time_us),
        weight=6,
    ),
    Column[NoiseForecast]("causes", "by", _causes, align="left", weight=7),
)


def _body(result: ForecastResult, page: Page) -> None:
    page.table(COLUMNS, result.forecasts)
    page.line()
    if result.left_out:
        verb = "is" if len(result.left_out) == 1 else "are"
        page.bullet(f"{ranks_in_words(result.left_out)} {verb} left out: the cost of a slow rank is not ordinary noise")
    page.bullet(_MODEL[result.synchronised_by].format(meetings=plural(result.meetings, "collective")))
    page.line()
    page.line(
        f"{_measured_step(result)}, {mean_of(result.steps)}; "
        f"{_hosts(result)}interval at {whole_percent(result.level)}; "
        f"{plural(result.draws, 'draw')}, seed {result.seed}"
    )


def _measured_step(result: ForecastResult) -> str:
    """Return the measured step on which the forecast is based, which is in no row of the table."""
    without = f" without what ranks waited for {ranks_in_words(result.left_out)}" if result.left_out else ""
    return f"measured step{without}: {duration(result.step_time_us)}"


def _hosts(result: ForecastResult) -> str:
    """Return the ranks per host; empty if no two hosts are known, since ranks of the forecast then have none."""
    unknown = any(one.code == "one_host" for one in result.warnings)
    return "" if unknown else f"{plural(result.per_host, 'rank')} a host; "


VIEW = View[ForecastResult, NoiseForecast](
    main="forecasts",
    columns=COLUMNS,
    headline=_headline,
    body=_body,
    records=(("forecasts", "forecast"),),
)
