"""The report of a triage, for an incident's ticket: the verdict, all that speaks for it, and how to see it oneself."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kair_engine.results.blame import BlamePath, BlameResult, RootCause
from kair_engine.results.rank import RankProfileResult
from kair_engine.results.triage import Evidence, Finding
from kair_engine.results.whatif import FIX_KINDS
from kair_tui.render.answer import Column, JobInfo
from kair_tui.render.blame import stop_text, symptom
from kair_tui.render.blame_paths import blame_headline, cause_operator, each, key_of, paths_by_cause, stops
from kair_tui.render.report.content import (
    Block,
    Command,
    Facts,
    Node,
    Report,
    Section,
    Text,
    Title,
    Tone,
    Tree,
    table,
)
from kair_tui.render.report.pictures import completion, score_grid
from kair_tui.render.triage import COLUMNS as RANKING
from kair_tui.render.triage import (
    PART_COLUMNS,
    FindingInWords,
    TriageInWords,
    absorbed_lines,
    facts,
    fix_words,
    options_of,
    title,
    triage_totals,
)
from kair_tui.render.units import duration, gain, one_decimal, percent, plural, signed_duration, slowdown, spans
from kair_tui.render.verdict import money_text, verdict_in_words
from kair_tui.render.warnings import WarningInWords
from kair_tui.render.whatif import WhatifInWords

_RANKS: Final = 16
_CAUSES, _PATHS, _PARTS = 6, 2, 6
_TONES: Final[Mapping[str, Tone]] = {
    "straggler": "alarm",
    "job_wide": "open",
    "inconclusive": "open",
    "no_straggler": "fine",
}

Ask = Callable[..., str]
"""An analysis and the words behind it, as a line for a shell."""


@dataclass(frozen=True)
class Found:
    """What the report is made of. A text stands for an answer that there is none of, and says why."""

    job: JobInfo
    triage: TriageInWords
    profiles: tuple[RankProfileResult, ...]
    """Of the ranks that are accused, or else of the most suspicious one."""
    blame: BlameResult | str
    whatif: WhatifInWords | str
    warnings: tuple[WarningInWords, ...]


@dataclass(frozen=True)
class _Price:
    """A finding fixed, or all together."""

    fixed: str
    saved_us: float
    throughput_gain: float
    gpu_hours_per_day: float
    cost_per_day: float | None


@dataclass(frozen=True)
class _Part:
    """What one part of the job costs."""

    of: str
    part: str
    slowdown: float


_PRICES: Final = (
    Column[_Price]("fixed", "without", lambda row: row.fixed, align="left"),
    Column[_Price]("saved_us", "saved/step", lambda row: signed_duration(row.saved_us)),
    Column[_Price]("throughput_gain", "throughput", lambda row: gain(row.throughput_gain)),
    Column[_Price]("gpu_hours_per_day", "GPU-hours/day", lambda row: one_decimal(row.gpu_hours_per_day)),
    Column[_Price]("cost_per_day", "cost/day", lambda row: money_text(row.cost_per_day)),
)
_PART_PRICES: Final = (
    Column[_Part]("of", "of", lambda row: row.of, align="left"),
    Column[_Part]("part", "part", lambda row: row.part, align="left"),
    Column[_Part]("slowdown", "S", lambda row: slowdown(row.slowdown)),
    Column[_Part]("costs", "costs", lambda row: percent(max(row.slowdown - 1, 0.0))),
)


def triage_report(found: Found, ask: Ask, made: str) -> Report:
    """The report; `ask` makes the line that asks an analysis, with options, of this job."""
    triage = found.triage
    return Report(
        kicker=f"triage of {found.job.name}",
        badge=verdict_in_words(triage.verdict),
        tone=_TONES[triage.verdict],
        lead=triage.summary,
        facts=_facts(found),
        sections=tuple(_sections(found, ask)),
        made=made,
    )


def _facts(found: Found) -> Facts:
    job, triage = found.job, found.triage
    hosts = {row.host for row in triage.ranking if row.host}
    pairs = [
        ("job", job.name),
        ("recording", job.source),
        ("ranks", f"{len(job.ranks)} of {job.world_size}"),
        ("hosts", str(len(hosts)) if hosts else "not recorded"),
        ("steps", f"{len(job.steps)} ({spans(job.steps)})"),
        ("step time", duration(triage.step_time_us)),
    ]
    if not isinstance(found.whatif, str):
        pairs.append(("slowdown S", f"{slowdown(found.whatif.slowdown)}, {percent(found.whatif.waste)} waste"))
    return Facts(tuple(pairs))


def _sections(found: Found, ask: Ask) -> Iterator[Section]:
    alone = len(found.triage.ranking) == 1
    for number, finding in enumerate(found.triage.findings, 1):
        yield Section(f"{number}. {title(finding, alone=alone)}", tuple(_finding(finding, ask)), card=True)
    if found.triage.absorbed:
        yield Section("What costs nothing", (Tree(tuple(map(Node, absorbed_lines(found.triage)))),))
    yield Section("Every rank", tuple(_every_rank(found.triage, ask)))
    for profile in found.profiles:
        yield _curve(profile, ask)
    yield Section("Whom ranks waited for", tuple(_blame(found.blame, ask)))
    yield Section("What it costs", tuple(_costs(found, ask)))
    if found.warnings:
        yield Section("What to know about the recording", (Tree(tuple(Node(one.message) for one in found.warnings)),))


def _finding(finding: FindingInWords, ask: Ask) -> Iterator[Block]:
    for fact in facts(finding):
        yield Text(fact)
    yield Tree(tuple(Node(one.sentence, command=_shown_by(one, ask)) for one in finding.evidence))
    if finding.suggestion:
        yield Title("What to do")
        yield Text(finding.suggestion)


def _shown_by(one: Evidence, ask: Ask) -> str | None:
    return None if one.shown_by is None else ask(one.shown_by.analysis, *options_of(one.shown_by))


def _every_rank(triage: TriageInWords, ask: Ask) -> Iterator[Block]:
    if triage.parts:
        yield table(PART_COLUMNS, triage.parts, _RANKS)
    elif triage.ranking:
        yield score_grid(triage.ranking)
        yield table(RANKING, triage.ranking, _RANKS)
    yield Text(triage_totals(triage), dim=True)
    yield Command(ask("triage"))
    if not triage.parts:
        yield Command(ask("localize"))


def _curve(profile: RankProfileResult, ask: Ask) -> Section:
    asked = Command(ask("rank", "--rank", str(profile.rank)))
    name = f"Rank {profile.rank} beside its peers" if profile.peers else f"Rank {profile.rank}"
    return Section(name, (completion(profile), asked) if profile.curve else (asked,))


def _blame(blame: BlameResult | str, ask: Ask) -> Iterator[Block]:
    if isinstance(blame, str):
        yield Text(blame)
        return
    yield Text(blame_headline(blame))
    paths = paths_by_cause(blame)
    nodes = [_root_cause(cause, paths.get(key_of(cause), ())) for cause in blame.root_causes[:_CAUSES]]
    if left := len(blame.root_causes) - len(nodes):
        nodes.append(Node(f"… and {plural(left, 'lesser cause')}"))
    yield Tree(tuple(nodes))
    yield Command(ask("blame"))


def _root_cause(cause: RootCause, paths: Sequence[BlamePath]) -> Node:
    text = (
        f"rank {cause.rank}, {cause_operator(cause)}: {duration(cause.blamed_us)}, {percent(cause.share)} of all "
        f"waiting, in {plural(cause.synchronisations, 'synchronisation')}"
    )
    return Node(text, tuple(_path(path) for path in paths[:_PATHS]))


def _path(path: BlamePath) -> Node:
    """The symptom, and each stop under the one before."""
    below: tuple[Node, ...] = ()
    for at in reversed(range(len(stops(path)))):
        below = (Node(stop_text(path, at), below),)
    return Node(symptom(each((path,))[0]), below)


def _costs(found: Found, ask: Ask) -> Iterator[Block]:
    triage, whatif = found.triage, found.whatif
    prices = [_price(number, finding) for number, finding in enumerate(triage.findings, 1)]
    if triage.together is not None and len(prices) > 1:
        together = triage.together
        prices.append(
            _Price(
                "all of them",
                together.saved_us,
                together.throughput_gain,
                together.gpu_hours_per_day,
                together.cost_per_day,
            )
        )
    if prices:
        yield table(_PRICES, prices, _RANKS)
    if isinstance(whatif, str):
        yield Text(whatif)
        return
    yield Text(whatif.verdict)
    if parts := [*_parts(whatif)]:
        yield table(_PART_PRICES, parts, len(parts))
    yield Command(ask("whatif"))
    if fixes := dict.fromkeys(fix_words(fix) for finding in triage.findings for fix in finding.fix):
        yield Command(ask("whatif", *(word for option in fixes for word in option)))


def _price(number: int, finding: Finding) -> _Price:
    return _Price(
        f"{number}. {title(finding)}",
        finding.time_lost_us_per_step,
        finding.throughput_gain,
        finding.gpu_hours_per_day,
        finding.cost_per_day,
    )


def _parts(whatif: WhatifInWords) -> Iterator[_Part]:
    """Of each kind the costliest parts, those that cost something."""
    groups: tuple[tuple[str, Mapping[Any, float]], ...] = (
        (
            "kind of time" if set(whatif.by_operator_type) <= set(FIX_KINDS) else "operation type",
            whatif.by_operator_type,
        ),
        ("stage", whatif.by_stage),
        ("host", whatif.by_host),
        ("rank", whatif.by_rank or whatif.by_rank_approximate),
    )
    for name, of in groups:
        for part, value in [*of.items()][:_PARTS]:
            if value - 1 >= 0.0005:  # as printed 0.0 %, as on a terminal
                yield _Part(name, str(part), value)
