"""The report of a triage, for an incident's ticket: the verdict, its evidence, and how to verify it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kair_engine.ranks import Rank
from kair_engine.results.blame import BlamePath, BlameResult, RootCause
from kair_engine.results.evidence_kinds import Evidence
from kair_engine.results.rank import RankProfileResult
from kair_engine.results.steplog import LogOfSteps
from kair_engine.results.timeline import TimelineResult
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.results.whatif import FixPrice, WhatifResult
from kair_tui.render.answer import Column, JobInfo
from kair_tui.render.blame import stop_text, symptom
from kair_tui.render.blame_paths import blame_headline, cause_operator, each, key_of, paths_by_cause, stops
from kair_tui.render.changes import against_in_words
from kair_tui.render.joint_prices import fixed_first, joint_of, last_us
from kair_tui.render.open_items import open_lines
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
from kair_tui.render.report.pictures import around_delay, before_and_after, completion, differs, score_grid, step_bar
from kair_tui.render.steplog import log_lines, log_totals
from kair_tui.render.triage import COLUMNS as RANKING
from kair_tui.render.triage import (
    PART_COLUMNS,
    absorbed_lines,
    context_lines,
    facts,
    fix_words,
    options_of,
    part_lines,
    title,
    triage_totals,
)
from kair_tui.render.units import (
    duration,
    gain,
    mean_of,
    one_decimal,
    percent,
    plural,
    signed_duration,
    slowdown,
    spans,
)
from kair_tui.render.verdict import costs, money_text, verdict_in_words
from kair_tui.render.warnings import WarningInWords
from kair_tui.render.whatif import Part, parts_of

_RANKS: Final = 16
_CAUSES, _PATHS, _PARTS = 6, 2, 6
_TONES: Final[Mapping[str, Tone]] = {
    "straggler": "alarm",
    "job_wide": "open",
    "inconclusive": "open",
    "no_straggler": "fine",
}

Ask = Callable[..., str]
"""Makes the command line of an analysis with options."""


@dataclass(frozen=True)
class Found:
    """The content of the report. A text replaces a missing answer, and gives the reason."""

    job: JobInfo
    triage: TriageResult
    profiles: tuple[RankProfileResult, ...]
    """Those of the accused ranks, or else of the most suspicious one."""
    blame: BlameResult | str
    whatif: WhatifResult | str
    warnings: tuple[WarningInWords, ...]
    timeline: TimelineResult | None = None
    """Around the delay of the first accused rank, or of the one waited for longest; None without findings."""
    fixed: TimelineResult | None = None
    """The same step with the fix of the first finding; None if it has none, or cannot be replayed by itself."""


@dataclass(frozen=True)
class _Price:
    """The price of fixing a finding, or all together."""

    fixed: str
    saved_us: float
    throughput_gain: float
    gpu_hours_per_day: float
    cost_per_day: float | None
    currency: str | None
    last_us: float | None = None
    """For one of several accused, the saving of fixing it after all others."""


_PRICES: Final = (
    Column[_Price]("fixed", "without", lambda row: row.fixed, align="left"),
    Column[_Price]("saved_us", "saved/step", lambda row: signed_duration(row.saved_us)),
    Column[_Price](
        "last_us", "saved after the others", lambda row: "–" if row.last_us is None else signed_duration(row.last_us)
    ),
    Column[_Price]("throughput_gain", "throughput", lambda row: gain(row.throughput_gain)),
    Column[_Price]("gpu_hours_per_day", "GPU-hours/day", lambda row: one_decimal(row.gpu_hours_per_day)),
    Column[_Price]("cost_per_day", "cost/day", money_text),
)
_PART_PRICES: Final = (
    Column[Part]("sort", "of", lambda row: row.sort, align="left"),
    Column[Part]("part", "part", lambda row: row.part, align="left"),
    Column[Part]("saved_us", "saved/step", lambda row: signed_duration(row.saved_us)),
    Column[Part]("saved", "of the step", lambda row: percent(row.saved)),
    Column[Part]("gpu_hours_per_day", "GPU-hours/day", lambda row: one_decimal(row.gpu_hours_per_day)),
)


def triage_report(found: Found, ask: Ask, made: str) -> Report:
    """Return the report; `ask` makes the command line of an analysis of this job, with options."""
    triage = found.triage
    return Report(
        kicker=f"triage of {found.job.name}",
        badge=verdict_in_words(triage.verdict),
        tone=_TONES[triage.verdict],
        lead=triage.summary,
        facts=_facts(found),
        sections=tuple(_sections(found, ask) if triage.log is None else _of_log(triage, triage.log, ask)),
        made=made,
    )


def _facts(found: Found) -> Facts:
    job, triage = found.job, found.triage
    hosts = {row.host for row in triage.ranking if row.host}
    pairs = [
        ("job", job.name),
        ("recording", job.source),
        ("ranks", f"{len(job.ranks)} of {job.world_size}" if job.world_size else "not known"),
        ("hosts", str(len(hosts)) if hosts else "not recorded"),
        ("steps", f"{len(job.steps)} ({spans(job.steps)})"),
        ("step time", f"{duration(triage.step_time_us)}, {mean_of(triage.steps, sampled=triage.is_sampled)}"),
    ]
    if triage.findings:
        pairs.append(("a fix saves", _saved_in_words(triage)))
    if not isinstance(found.whatif, str):
        without = f"S {slowdown(found.whatif.slowdown)}: a step takes {percent(found.whatif.waste)} less"
        pairs.append(("without any straggler", without))
    return Facts(tuple(pairs))


def _saved_in_words(triage: TriageResult) -> str:
    """Return the price of all accused, or of the first finding: `22.3 ms a step, 22.5 GPU-hours a day`."""
    if (joint := joint_of(triage)) is not None:
        hours = f"{one_decimal(joint.cost.gpu_hours_per_day)} GPU-hours a day"
        return f"{duration(joint.cost.saved_us)} a step, {hours} ({joint.who} together)"
    finding = triage.findings[0]
    return f"{costs(finding)} a step, {one_decimal(finding.gpu_hours_per_day)} GPU-hours a day"


def _sections(found: Found, ask: Ask) -> Iterator[Section]:
    alone = len(found.triage.ranking) == 1
    if found.triage.bar is not None:
        yield Section("Where the step goes", (step_bar(found.triage.bar),))
    for number, finding in enumerate(found.triage.findings, 1):
        yield Section(f"{number}. {title(finding, alone=alone)}", tuple(_finding(finding, ask)), card=True)
    if found.timeline is not None:
        yield _timeline(found.timeline, found.triage, ask)
    if found.fixed is not None and found.fixed.fixed is not None:
        who, fixes = fixed_first(found.triage)
        words = [word for fix in fixes for word in fix_words(fix)]
        drawn = before_and_after(found.fixed, found.fixed.fixed)
        yield Section(f"The same step with {who} fixed", (drawn, Command(ask("timeline", *words))))
    if still_open := open_lines(found.triage):
        yield Section("What is open", (Tree(tuple(Node(line.removeprefix("open: ")) for line in still_open)),))
    if found.triage.absorbed:
        yield Section("What costs nothing", (Tree(tuple(map(Node, absorbed_lines(found.triage)))),))
    if lines := context_lines(found.triage):
        yield Section("What differs, and what happened meanwhile", (Tree(tuple(map(Node, lines))),))
    if found.triage.against_baseline is not None:
        compared = map(Node, against_in_words(found.triage.against_baseline))
        yield Section("Compared with the baseline", (Tree(tuple(compared)),))
    yield Section("Every rank", tuple(_every_rank(found.triage, ask)))
    for profile in found.profiles:
        if differs(profile):
            yield _curve(profile, ask)
    yield Section("Whom ranks waited for", tuple(_blame(found.blame, ask)))
    yield Section("What it costs", tuple(_costs(found, ask)))
    if found.warnings:
        yield Section("What to know about the recording", (Tree(tuple(Node(one.message) for one in found.warnings)),))


def _of_log(triage: TriageResult, log: LogOfSteps, ask: Ask) -> Iterator[Section]:
    """Yield the sections of a job known from its log; one of a hung job has a finding, too."""
    for number, finding in enumerate(triage.findings, 1):
        yield Section(f"{number}. {title(finding)}", tuple(_finding(finding, ask)), card=True)
    yield Section("What the log says", (Tree(tuple(map(Node, log_lines(log)))),))
    yield Section("See it yourself", (Text(log_totals(log), dim=True), Command(ask("triage"))))


def _finding(finding: Finding, ask: Ask) -> Iterator[Block]:
    for fact in facts(finding):
        yield Text(fact)
    if lines := part_lines(finding, wide=True):
        yield Tree(tuple(map(Node, lines)))
    yield Tree(tuple(Node(one.sentence, command=_shown_by(one, ask)) for one in finding.evidence))
    if finding.suggestion:
        yield Title("What to do")
        yield Text(finding.suggestion)


def _shown_by(one: Evidence, ask: Ask) -> str | None:
    return None if one.shown_by is None else ask(one.shown_by.analysis, *options_of(one.shown_by))


def _every_rank(triage: TriageResult, ask: Ask) -> Iterator[Block]:
    if triage.parts:
        yield table(PART_COLUMNS, triage.parts, _RANKS)
    elif triage.ranking:
        yield score_grid(triage.ranking)
        yield table(RANKING, triage.ranking, _RANKS)
    yield Text(triage_totals(triage), dim=True)
    yield Command(ask("triage"))
    if not triage.parts:
        yield Command(ask("localize"))


def _timeline(result: TimelineResult, triage: TriageResult, ask: Ask) -> Section:
    accused = around(triage)
    words = [] if accused is None else ["--around", str(accused)]
    return Section("Around the delay", (around_delay(result), Command(ask("timeline", *words))))


def around(triage: TriageResult) -> Rank | None:
    """Return the rank whose delay the report shows: the first accused one; None without one."""
    return next((one.ranks[0] for one in triage.findings if one.ranks), None)


def _curve(profile: RankProfileResult, ask: Ask) -> Section:
    command = Command(ask("rank", "--rank", str(profile.rank)))
    return Section(f"Rank {profile.rank} and its peers", (completion(profile), command))


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
    """Return the symptom, with each stop below the one before."""
    below: tuple[Node, ...] = ()
    for at in reversed(range(len(stops(path)))):
        below = (Node(stop_text(path, at), below),)
    return Node(symptom(each((path,))[0]), below)


def _costs(found: Found, ask: Ask) -> Iterator[Block]:
    triage, whatif = found.triage, found.whatif
    prices = [_price(number, finding) for number, finding in enumerate(triage.findings, 1)]
    joint = joint_of(triage)
    if joint is not None:
        prices.insert(0, _of_all(f"{joint.who} together", joint.cost))
    if triage.together is not None and len(prices) > 1 and triage.together != triage.accused_together:
        prices.append(_of_all("all of them", triage.together))
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


def _of_all(what: str, cost: FixPrice) -> _Price:
    return _Price(what, cost.saved_us, cost.throughput_gain, cost.gpu_hours_per_day, cost.cost_per_day, cost.currency)


def _price(number: int, finding: Finding) -> _Price:
    return _Price(
        f"{number}. {title(finding)}",
        finding.time_lost_us_per_step,
        finding.throughput_gain,
        finding.gpu_hours_per_day,
        finding.cost_per_day,
        finding.currency,
        last_us(finding),
    )


def _parts(whatif: WhatifResult) -> Iterator[Part]:
    """Yield the costliest parts of each sort, if they cost something."""
    for parts in parts_of(whatif).values():
        yield from (part for part in parts[:_PARTS] if part.is_worth_a_line)
