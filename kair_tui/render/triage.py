"""The whole investigation for people: the findings, then every rank's place.

Adds to the engine's figures the sentences, commands and suggestions for people.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from kair_engine.causes import CAUSES
from kair_engine.frozen import dataclass
from kair_engine.results.evidence_kinds import ShownBy
from kair_engine.results.fixes import fix_text
from kair_engine.results.steplog import LogChange, LogPeriod, LogRank
from kair_engine.results.triage import Finding, OpenItem, RankedRank, TriageResult, Verdict
from kair_engine.results.whatif import Fix, FixPrice
from kair_tui.render.answer import ALARM, Cell, Column, Styled
from kair_tui.render.bar import in_one_line, waiting_in_words
from kair_tui.render.changes import against_in_words
from kair_tui.render.confirm import confirmed_in_words
from kair_tui.render.delays import absorbed_in_words, stops_in_words
from kair_tui.render.hangs import held_up_at, how_it_ended, stands_still, what_to_do
from kair_tui.render.joint_prices import joint_of, last_us, part_of_step, together_lines
from kair_tui.render.localize import flag
from kair_tui.render.oneline import oneline
from kair_tui.render.open_items import open_in_words, open_lines
from kair_tui.render.rank import COLUMNS as OF_PARTS
from kair_tui.render.sentences import kernels_in_words, sentence_of
from kair_tui.render.steplog import log_in_words, log_lines, log_totals
from kair_tui.render.text import short_name
from kair_tui.render.units import (
    and_more,
    duration,
    mean_step,
    money,
    one_decimal,
    p_value,
    percent,
    ranks_in_words,
    ratio,
    score,
    signed_duration,
    spans,
    waited_of,
    without_unit,
)
from kair_tui.render.verdict import (
    cause_in_words,
    is_hidden,
    is_idle,
    lost_us,
    own_step_us,
    pattern_in_words,
    seen_in_words,
    summary,
    verdict_in_words,
)
from kair_tui.render.view import CsvTable, View
from kair_tui.render.within_rank import advice

if TYPE_CHECKING:
    from kair_tui.render.page import Branch, Page


_NOBODY = "No rank is to blame: "
_FUSE: Mapping[str, str] = {
    "torch": "torch.compile",
    "xla": "jax.jit or tf.function(jit_compile=True) on the whole step",
}
"""Each framework's way to fuse small kernels."""
_OF_DEVICES = frozenset(("compute", "communication", "device_contention"))
"""Causes that a device, or its link to others, can be at fault for."""
_DEVICES_SHOWN = 4
_UUID = re.compile(r"\b((?:GPU|MIG)-[0-9a-f]{4})[0-9a-f-]{28}([0-9a-f]{4})\b")
_WARM_UP: Mapping[str, str] = {"xla": "trace some steps after the first ones"}


def triage_in_words(result: TriageResult) -> TriageResult:
    """Return the answer with its sentences, from which every document and page is made."""
    findings = tuple(map(_in_words, result.findings))
    if len(result.ranking) == 1:
        # Without peers this cannot be said.
        findings = tuple(map(_of_one_rank, findings))
    step_us = result.step_time_us
    return replace(
        result,
        findings=findings,
        absorbed=tuple(replace(one, sentence=absorbed_in_words(one, step_us)) for one in result.absorbed),
        open=tuple(open_in_words(one, step_us) for one in result.open),
        log=None if result.log is None else log_in_words(result.log),
        summary=summary(result),
    )


def _in_words(finding: Finding) -> Finding:
    evidence = (
        one.changed(sentence=sentence_of(one), command=None if one.shown_by is None else command_of(one.shown_by))
        for one in finding.evidence
    )
    return replace(
        finding,
        evidence=tuple(evidence),
        suggestion=suggestion_of(finding),
        fix_options=tuple(map(fix_option, finding.fix)),
    )


def _of_one_rank(finding: Finding) -> Finding:
    """Return the finding of a recording of one rank, without statements about others."""
    advice = re.sub("(?i)^threads of all ranks", "Its threads", finding.suggestion.removeprefix(_NOBODY))
    shown = (
        one.changed(sentence=f"its threads stop {stops_in_words(one.figures, alone=True)}")
        if one.kind == "host_stops"
        else one
        for one in finding.evidence
    )
    return replace(finding, suggestion=upper(advice), evidence=tuple(shown))


def upper(text: str) -> str:
    """Return the text with an upper-case first letter."""
    return text[:1].upper() + text[1:]


def suggestion_of(finding: Finding) -> str:
    """Return what to do: about a larger batch, about the part that explains it, or the cause."""
    return (None if _gives_more(finding) else _remedy(finding)) or _of_cause(finding)


def _gives_more(finding: Finding) -> bool:
    """Return whether a host takes longer for a larger batch: its other activities, such as sleeping, are no cause."""
    return finding.cause == "host" and any(one.kind == "larger_batch" for one in finding.evidence)


def _remedy(finding: Finding) -> str | None:
    explained = next((one for one in finding.explanations if one.word == "explains"), None)
    if explained is None:
        return None
    from kair_tui.render.explanations import remedy_of

    return remedy_of(explained)


def _of_cause(finding: Finding) -> str:
    row = CAUSES["uneven_work" if _gives_more(finding) else finding.cause]
    text = row.suggestion
    if finding.pattern == "job_wide" and row.job_wide_suggestion is not None:
        text = row.job_wide_suggestion
    elif finding.pattern == "group":
        text = row.group_suggestion
    text = what_to_do(finding) or advice(finding) or text
    ranks = finding.ranks or finding.seen_on
    who = ranks_in_words(ranks)
    placed = next((str(one.about) for one in finding.evidence if one.kind == "uneven_positions"), None)
    where = finding.operator if placed is None else placed.rpartition("; ")[0]
    named = f" ({kernels_in_words(where)})" if where else ""
    return text.format(
        who=who,
        Who=who.capitalize(),
        rank=next(iter(ranks), None),
        operator=named,
        device=f" ({'; '.join(finding.devices)})" if 0 < len(finding.devices) <= _DEVICES_SHOWN else "",
        fuse=_FUSE.get(finding.framework or "", "torch.compile, jax.jit"),
        warm_up=_WARM_UP.get(finding.framework or "", "torch.profiler.schedule with warmup"),
    )


def fix_option(fix: Fix) -> str:
    """Return the option of `kair whatif` for a fix: `--fix rank=3+kind=compute`."""
    return shlex.join(fix_words(fix))


def options_of(shown_by: ShownBy) -> list[str]:
    """Return the words after the analysis' name, not quoted for a shell."""
    words = [] if shown_by.rank is None else ["--rank", str(shown_by.rank)]
    return words + [word for fix in shown_by.fixes for word in fix_words(fix)]


def fix_words(fix: Fix) -> tuple[str, str]:
    """Return the option and its value."""
    return "--scale" if fix.is_scale else "--fix", fix_text(fix)


def command_of(shown_by: ShownBy) -> str:
    """Return the command for a shell, with names from a trace quoted."""
    return shlex.join(["kair", shown_by.analysis, *options_of(shown_by)])


RANKS_SHOWN = 10

COLUMNS = (
    Column[RankedRank]("rank", "rank", lambda row: str(row.rank), weight=9),
    Column[RankedRank]("host", "host", lambda row: row.host or "–", align="left", weight=3),
    Column[RankedRank]("role", "role", lambda row: row.role, align="left", weight=2),
    Column[RankedRank]("score", "score", lambda row: score(row.score), weight=8),
    Column[RankedRank](
        "self_time_excess_us",
        "excess in usual steps",
        lambda row: signed_duration(row.self_time_excess_us),
        weight=6,
    ),
    Column[RankedRank](
        "wait_imposed_us",
        "others wait/step",
        lambda row: "–" if row.wait_imposed_us is None else duration(row.wait_imposed_us),
        weight=6,
    ),
    Column[RankedRank]("flagged", "flag", lambda row: flag(row.flagged), align="left", weight=8),
)
PART_COLUMNS = tuple(column for column in OF_PARTS if column.key in ("part", "own_us", "share"))
"""For one rank alone, which cannot be ranked."""


def _body(result: TriageResult, page: Page) -> None:
    if result.bar is not None:
        page.step_bar(result.bar)
        page.line()
    wide = page.options.wide
    _block(together_lines(result), page)
    for number, (heading, lines, evidence, to_do) in enumerate(_of_findings(result, wide=wide), 1):
        page.numbered(number, heading, ALARM)
        for line in lines:
            page.line(line, indent=3)
        for sentence in evidence:
            page.bullet(sentence)
        for line in to_do:
            page.line(line, indent=3)
        page.line()
    for block in _below_findings(result, wide=wide):
        _block(block, page)
    if result.parts:
        page.table(PART_COLUMNS, result.parts)
        page.line()
    elif has_scores(result):
        page.table(COLUMNS, result.ranking, limit=RANKS_SHOWN)
        page.line()
    page.line(triage_totals(result))
    if result.confirmed is not None:
        page.line(confirmed_in_words(result.confirmed))
    if result.against_baseline is not None:
        page.lines_of(against_in_words(result.against_baseline))
    if result.sources:
        from kair_tui.render.evidence import sources_in_words  # few recordings have any

        page.line(f"evidence: {sources_in_words(result.sources)}")


def has_scores(result: TriageResult) -> bool:
    """Return whether ranks have scores: recordings of calls have no times, and one rank alone has no peers."""
    return bool(result.ranking and result.steps) and not result.parts


def _of_findings(result: TriageResult, *, wide: bool) -> Iterator[tuple[str, list[str], list[str], list[str]]]:
    """Yield (title, figures and parts, evidence, what to do) of each finding."""
    for finding in result.findings:
        heading = title(finding, wide=wide, alone=len(result.ranking) == 1)
        to_do = [f"suggestion: {finding.suggestion}"] if finding.suggestion else []
        yield heading, [*facts(finding, wide=wide), *part_lines(finding, wide=wide)], sentences(finding), to_do


def _below_findings(result: TriageResult, *, wide: bool) -> Iterator[list[str]]:
    """Yield the texts below the findings, a list for each subject."""
    yield log_lines(result.log, names_ranks=not any("own_lines" in one.shows for one in result.findings))
    yield open_lines(result, below=result.summary)
    yield absorbed_lines(result, wide=wide)
    yield context_lines(result, wide=wide)
    yield record_lines(result)


def _block(lines: Sequence[str], page: Page) -> None:
    for line in lines:
        page.line(line)
    if lines:
        page.line()


def absorbed_lines(result: TriageResult, *, wide: bool = False) -> list[str]:
    """Return delays that cost nothing because hosts are ahead of their devices.

    `wide`: with their operators.
    """
    return [
        f"absorbed: {one.sentence}" + (f", in {one.operator}" if wide and one.operator else "")
        for one in result.absorbed
    ]


def context_lines(result: TriageResult, *, wide: bool = False) -> list[str]:
    """Return events near the begin of findings, and differences between ranks.

    Neither accuses anybody.
    """
    if not result.differences and not result.happenings:
        return []
    from kair_tui.render.differences import difference_lines, happening_lines

    return [*happening_lines(result, wide=wide), *difference_lines(result, wide=wide)]


def part_lines(finding: Finding, *, wide: bool = False) -> list[str]:
    """Return evidence about the parts that could cause it; empty without evidence."""
    if not finding.explanations:
        return []
    from kair_tui.render.explanations import explanation_lines

    return explanation_lines(finding.explanations, wide=wide)


def gain_in_words(result: TriageResult) -> str:
    """Return the gain without all accused, else without the costliest finding; empty if others hide it."""
    if (joint := joint_of(result)) is not None:
        return f"{joint.who} fixed: {gained_in_words(joint.cost)}"
    accused = [one for one in result.findings if one.ranks] or list(result.findings)
    worth = [one for one in accused if not is_hidden(one) and not CAUSES[one.cause].of_recording]
    if not worth:
        return ""
    finding = worth[0]
    who = ranks_in_words(finding.ranks) + " fixed" if finding.ranks else f"without {cause_in_words(finding.cause)}"
    return f"{who}: {gained_in_words(finding)}"


def gained_in_words(without: Finding | FixPrice) -> str:
    """Return `+17.9 % throughput, 29.1 GPU-hours a day`, and money if the price is known."""
    money_saved = "" if without.cost_per_day is None else f", {money(without.cost_per_day, without.currency)}"
    hours = f"{one_decimal(without.gpu_hours_per_day)} GPU-hours"
    return f"+{percent(without.throughput_gain)} throughput, {hours}{money_saved} a day"


def triage_totals(result: TriageResult) -> str:
    """Return the step time, and the waiting in it."""
    if result.log is not None:
        return log_totals(result.log)
    if not result.steps:
        is_live = any(one.code in ("no_step_yet", "ended_from_outside") for one in result.warnings)
        return "no step's times are known" if is_live else "recordings of calls: how far each rank got, without times"
    return f"{mean_step(result.step_time_us, result.steps, sampled=result.is_sampled)}; {_waits(result)}"


def _waits(result: TriageResult) -> str:
    """Return the bar's share of waiting, then that of `kair blame`, which counts waits behind computation."""
    waiting_us, unattributed_us, bar = result.waiting_us_per_step, result.unattributed_us_per_step, result.bar
    if waiting_us is None:
        return "no waiting was recorded"
    if bar is not None and not bar.waiting_is_known:
        return waiting_in_words(bar)
    unknown = "" if unattributed_us is None else f"; {duration(unattributed_us)} of unknown cause"
    summed = f"({duration(waiting_us)} a step summed over ranks{unknown})"
    all_ranks_us = result.step_time_us * len(result.ranking)
    share = f"{waited_of(waiting_us / all_ranks_us, 'their time')} " if all_ranks_us else ""
    if bar is None:
        return f"ranks wait {share}{summed}"
    if share.startswith(percent(bar.waiting_share)):
        return f"{waiting_in_words(bar)} {summed}"  # no wait is behind computation
    return f"{waiting_in_words(bar)}; with waits behind computation {share}{summed}"


def title(finding: Finding, *, wide: bool = False, alone: bool = False) -> str:
    """Return who, what is wrong, and where; `alone` if no other rank was recorded."""
    where = "" if finding.pattern == "job_wide" else _in_operator(finding, wide) or _in_scope(finding)
    return f"{who_and_why(finding, alone=alone)}{where}"


def who_and_why(finding: Finding, *, alone: bool = False) -> str:
    """Return the title without an operator: `rank 3 on node-7: compute`."""
    if finding.pattern == "job_wide" and alone:
        return f"{ranks_in_words(finding.seen_on)}, the only one recorded: {cause_in_words(finding.cause)}"
    if finding.pattern == "job_wide":
        seen = f" (seen on {seen_in_words(finding.seen_on)})" if finding.seen_on else ""
        return f"no rank is to blame: {cause_in_words(finding.cause)}{seen}"
    who = ranks_in_words(finding.ranks) if finding.ranks else "the whole job"
    on = f" on {', '.join(finding.hosts[:3])}{and_more(len(finding.hosts) - 3)}" if finding.hosts else ""
    return f"{who}{on}: {cause_in_words(finding.cause)}"


def _in_scope(finding: Finding) -> str:
    """Return the part of the step from the history, if the cause's name does not say it."""
    if finding.scope in (None, "input") or finding.scope == cause_in_words(finding.cause):
        return ""
    return ", between steps' passes" if finding.scope == "loop" else f" in {finding.scope}"


def _in_operator(finding: Finding, wide: bool) -> str:
    if not finding.operator:
        return ""
    name = finding.operator if wide else short_name(finding.operator)
    return f", idle before {name}" if is_idle(finding) else f" in {name}"


def facts(finding: Finding, *, wide: bool = False) -> list[str]:
    """Return its figures: cost, time, certainty, and device."""
    if stands_still(finding):
        return [] if how_it_ended(finding) else [_price(finding)]  # stated by its evidence
    chance = "" if finding.p_value is None else f"; p {p_value(finding.p_value)}"
    began = "" if finding.since is None else f", since step {finding.since}"
    began = ", over since" if finding.until is not None else began
    steps = f", {'step' if len(finding.steps) == 1 else 'steps'} {spans(finding.steps)}" if finding.steps else ""
    how = pattern_in_words(finding.pattern)
    if finding.pattern == "intermittent" and len(finding.steps) == 1:
        # Within one step, some of its synchronisations came late.
        how = "at times within the step"
    where = f"{how}{steps}{began}{chance}"
    on_edge = [f"where: {finding.edge}"] if finding.edge and not is_idle(finding) else []
    return [_price(finding), *_track_record(finding), where, *on_edge, *_device(finding, wide)]


def _track_record(finding: Finding) -> list[str]:
    """Return the outcome of earlier prices for the same cause, if there are enough."""
    if finding.track_record is None:
        return []
    from kair_tui.render.ledger import track_record_in_words  # few stores have any

    return [track_record_in_words(finding.track_record)]


def record_lines(result: TriageResult) -> list[str]:
    """Return devices, hosts and links of the job that are repeatedly slow, a sentence each."""
    if not result.records:
        return []
    from kair_tui.render.ledger import record_in_words

    return [f"record: {record_in_words(one)}" for one in result.records]


def _device(finding: Finding, wide: bool) -> list[str]:
    """Return its devices' names, if devices or their links can be at fault; UUIDs whole if `wide`."""
    if finding.cause not in _OF_DEVICES or not finding.devices:
        return []
    shown = finding.devices if wide else tuple(map(with_short_uuids, finding.devices[:_DEVICES_SHOWN]))
    label = "device" if len(finding.devices) == 1 else "devices"
    return [f"{label}: {'; '.join(shown)}{and_more(len(finding.devices) - len(shown))}"]


def with_short_uuids(text: str) -> str:
    """Return `GPU-5f3e…4444`, enough to recognise it. `-o wide` and JSON have the whole."""
    return _UUID.sub(r"\1…\2", text)


def sentences(finding: Finding) -> list[str]:
    """Return its evidence, each sentence with the command that shows the same figures."""
    return [f"{one.sentence} [{one.command}]" if one.command else one.sentence for one in finding.evidence]


def _price(finding: Finding) -> str:
    if stands_still(finding):
        return f"the job is stuck at {held_up_at(finding)}"
    estimated = "estimated from its excess" if not _is_of_network(finding) else "estimated from its transfers"
    about = f" ({estimated})" if finding.priced_by == "excess" else ""
    if part_of_step(finding) is not None:
        return f"{_part(finding)}{about}"
    if is_hidden(finding):
        why = (
            "until the other findings are fixed"
            if finding.pattern == "job_wide"
            else "by it alone, as others are equally late"
        )
        return f"nothing lost {why}{about}"
    if CAUSES[finding.cause].of_recording:
        return f"{_lost(finding)}, slowdown {ratio(finding.slowdown)}; in recorded steps alone{about}"
    return f"{_lost(finding)}, slowdown {ratio(finding.slowdown)}; without it {gained_in_words(finding)}{about}"


def _part(finding: Finding) -> str:
    """Return the saving if it is fixed first, and if it is fixed after all other accused."""
    alone = f"fixed alone it saves {duration(finding.time_lost_us_per_step)} a step ({gained_in_words(finding)})"
    return f"{alone}, fixed after the others {duration(last_us(finding) or 0.0)}"


def _lost(finding: Finding) -> str:
    least, most = map(duration, lost_us(finding))
    if least == most and finding.time_lost_us_per_slow_step is not None:
        when = "while it lasted" if finding.every is None else f"in each step that has it, one in {finding.every}"
        mean = f"{least} lost per step{_of_own_step(finding)} on average"
        return f"{mean}, {duration(finding.time_lost_us_per_slow_step)} {when}"
    if least == most:
        return f"{least} lost per step{_of_own_step(finding)}"
    about = duration(finding.time_lost_us_per_step)
    return f"about {about} lost per step ({without_unit(f'{least} to {most}', of=about)})"


def _of_own_step(finding: Finding) -> str:
    """Return the step that a change is priced by, which is not the mean of the analysed steps."""
    if (step_us := own_step_us(finding)) is None:
        return ""
    steps = "all recorded steps" if finding.until is not None else f"the steps since step {finding.since}"
    return f" of {duration(step_us)} (mean of {steps})"


def _is_of_network(finding: Finding) -> bool:
    """Return whether a replay alone does not determine its price: see slow_network.py of triage."""
    return any(one.kind == "price_range" and one.about == "network" for one in finding.evidence)


def _tree(result: TriageResult, page: Page) -> None:
    def grow(root: Branch, safe: Callable[[Cell], Any]) -> None:
        wide = page.options.wide
        for heading, *parts in _of_findings(result, wide=wide):
            branch = root.add(safe(Styled(heading, ALARM)))
            for line in chain(*parts):
                branch.add(safe(line))
        for line in chain(*_below_findings(result, wide=wide)):
            root.add(safe(line))
        if result.bar is not None:
            root.add(safe(in_one_line(result.bar)))
        root.add(safe(triage_totals(result)))

    page.tree(f"verdict: {verdict_in_words(result.verdict)}", grow)


@dataclass(frozen=True)
class VerdictRow:
    """The verdict, one finding, or one open item as a line of CSV."""

    record: Literal["verdict", "finding", "open", "log"]
    number: int | None
    """The number of the finding, of the open item, or of an entry of a log, from 1."""
    verdict: Verdict
    cause: str | None = None
    pattern: str | None = None
    ranks: tuple[int, ...] = ()
    seen_on: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    operator: str | None = None
    edge: str | None = None
    steps: tuple[int, ...] = ()
    since: int | None = None
    p_value: float | None = None
    step_time_us: float | None = None
    time_lost_us_per_step: float | None = None
    slowdown: float | None = None
    throughput_gain: float | None = None
    gpu_hours_per_day: float | None = None
    cost_per_day: float | None = None
    currency: str | None = None
    least_us_per_step: float | None = None
    most_us_per_step: float | None = None
    priced_by: str | None = None
    until: int | None = None
    every: int | None = None
    time_lost_us_per_slow_step: float | None = None
    fix: tuple[str, ...] = ()
    text: str = ""
    """The answer in one sentence; for a finding, what to do; for an open item, its sentence and what would settle it.
    """


def _csv_rows(result: TriageResult) -> list[VerdictRow]:
    """Return the verdict, the findings, and open items; with several findings the verdict has their joint price."""
    rows = [_verdict_row(result)]
    rows += [_finding_row(result, *numbered) for numbered in enumerate(result.findings, 1)]
    rows += [_open_row(result, *numbered) for numbered in enumerate(result.open, 1)]
    found: list[LogRank | LogChange | LogPeriod] = []
    if result.log is not None:
        found = [*result.log.ranks, *result.log.changes, *result.log.periods]
    return rows + [_log_row(result, *numbered) for numbered in enumerate(found, 1)]


def _log_row(result: TriageResult, number: int, found: LogRank | LogChange | LogPeriod) -> VerdictRow:
    known = {name: getattr(found, name) for name in ("since", "until", "every", "p_value") if hasattr(found, name)}
    ranks = (found.rank,) if isinstance(found, LogRank) else ()
    lost = found.excess_us if isinstance(found, LogRank) else found.extra_us_per_step
    return VerdictRow(
        "log", number, result.verdict, ranks=ranks, time_lost_us_per_step=lost, text=found.sentence, **known
    )


def _verdict_row(result: TriageResult) -> VerdictRow:
    prices: dict[str, Any] = {}
    if (together := result.together) is not None and len(result.findings) > 1:
        shared = ("throughput_gain", "gpu_hours_per_day", "cost_per_day", "currency")
        prices = {name: getattr(together, name) for name in shared}
        prices |= {"time_lost_us_per_step": together.saved_us, "slowdown": 1 + together.throughput_gain}
    steps, text = result.steps, result.summary
    return VerdictRow(
        "verdict", None, result.verdict, steps=steps, step_time_us=result.step_time_us, text=text, **prices
    )


def _finding_row(result: TriageResult, number: int, finding: Finding) -> VerdictRow:
    columns = {field.name for field in fields(VerdictRow)}
    shared = {name: value for name, value in vars(finding).items() if name in columns - {"fix"}}
    # Without the dashes, which a spreadsheet takes for a formula.
    fixes = tuple(option.removeprefix("--fix ").removeprefix("--scale ") for option in finding.fix_options)
    return VerdictRow("finding", number, result.verdict, **shared, fix=fixes, text=finding.suggestion)


def _open_row(result: TriageResult, number: int, item: OpenItem) -> VerdictRow:
    return VerdictRow(
        "open",
        number,
        result.verdict,
        cause=item.cause,
        ranks=item.ranks,
        operator=item.operator,
        edge=item.where,
        steps=item.steps,
        time_lost_us_per_step=item.us_per_step,
        text=f"{item.sentence}; {item.settled_by}",
    )


VIEW = View[TriageResult, RankedRank](
    main="ranking",
    columns=COLUMNS,
    headline=lambda result: result.summary,
    body=_body,
    records=(("findings", "finding"), ("open", "open_item"), ("ranking", "rank")),
    tree=_tree,
    csv=CsvTable(VerdictRow, _csv_rows),
    line=oneline,
)
