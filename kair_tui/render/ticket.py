"""A ticket: one finding of a triage to hand over, and the same as Markdown."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from kair_engine.ranks import Rank
from kair_engine.results.evidence import Difference, Explanation, Happening, Word
from kair_engine.results.ticket import Fingerprint, PartOfTicket, Proof, TicketResult, TimelinePicture
from kair_engine.results.triage import Finding, TriageResult
from kair_tui.render.answer import Column
from kair_tui.render.confirm import confirmed_in_words
from kair_tui.render.joint_prices import together_lines
from kair_tui.render.oneline import chosen_finding, cost_in_words, part_of
from kair_tui.render.open_items import open_lines
from kair_tui.render.report.templates import filled
from kair_tui.render.report.triage import Ask
from kair_tui.render.text import clean
from kair_tui.render.triage import facts, options_of, title, upper, who_and_why
from kair_tui.render.units import plural, spans, utc
from kair_tui.render.verdict import verdict_in_words
from kair_tui.render.view import View
from kair_tui.render.warnings import warnings_in_words

_PROOFS: Final = 3
_MOST: Final = 8
"""Limit of differences, events and warnings: a ticket is read in a minute."""
_WORDS: Final[tuple[Word, ...]] = ("explains", "consistent", "seen", "excluded", "not_tied", "not_observed")
"""The most certain first."""
_LIMITS: Final[frozenset[str]] = frozenset({"others_nearly_as_late", "rank_by_order", "group_not_rank"})
"""Evidence that limits a finding."""
_OF_PRICE: Final[frozenset[str]] = frozenset({"price_range", "estimated"})
_FURTHER: Final[frozenset[str]] = frozenset({"replayed", "made_late", "operator_behind", "longest_delays", "since"})
"""Evidence that adds to a finding proved otherwise."""
_AGAINST: Final = ("withdrawn", "shared", "not_here")


def ticket_of(
    triage: TriageResult, number: int | None, ask: Ask, fingerprint: Fingerprint, timeline: TimelinePicture
) -> TicketResult:
    """Return the ticket of a finding by its number, from 1; None without findings.

    `ask` makes the command line of an analysis of this job, with options.
    """
    bare = TicketResult(
        asked="ticket",
        title=f"[kair] {_scope(triage)}",
        verdict=triage.verdict,
        finding=number,
        summary=triage.summary,
        timeline=timeline,
        commands=(ask("triage"),),
        fingerprint=fingerprint,
        warnings=triage.warnings,
    )
    return _of_open_items(bare, triage) if number is None else _of_finding(bare, triage, number, ask)


def _of_open_items(bare: TicketResult, triage: TriageResult) -> TicketResult:
    """Return the ticket of an answer without findings: what is open, and what would settle the largest item."""
    if not triage.open:
        return bare
    largest = max(triage.open, key=lambda one: one.us_per_step)
    lines = (line.removeprefix("open: ") for line in open_lines(triage))
    return replace(bare, price=tuple(lines), suggestion=upper(f"{largest.settled_by}."))


def number_of(triage: TriageResult) -> int | None:
    """Return the default finding of a ticket: the first that accuses somebody, else the first."""
    chosen = chosen_finding(triage)
    return None if chosen is None else next(at for at, one in enumerate(triage.findings, 1) if one is chosen)


def _scope(triage: TriageResult) -> str:
    if triage.open and triage.verdict == "inconclusive":
        return f"{verdict_in_words(triage.verdict)}: {max(triage.open, key=lambda one: one.us_per_step).sentence}"
    steps = f", {plural(len(triage.steps), 'step')}" if triage.steps else ""
    return f"{verdict_in_words(triage.verdict)}: {plural(len(triage.ranking), 'rank')}{steps}"


def _of_finding(bare: TicketResult, triage: TriageResult, number: int, ask: Ask) -> TicketResult:
    finding, alone = triage.findings[number - 1], len(triage.ranking) == 1
    part = part_of(finding)
    why = f"{who_and_why(finding, alone=alone)}{f' ({part})' if part else ''}"
    others = [(at, one) for at, one in enumerate(triage.findings, 1) if at != number]
    return replace(
        bare,
        title=f"[kair] {why}, {cost_in_words(finding, triage)}",
        price=(*together_lines(triage, finding), *facts(finding)),
        proofs=tuple(strongest_proofs(triage, finding, ask)[:_PROOFS]),
        against=tuple(_against(triage, finding)),
        devices=finding.devices,
        parts=tuple(_parts(finding.explanations)),
        differences=tuple(_differences(triage.differences, finding.ranks)),
        happenings=tuple(_happenings(triage.happenings, number, finding)),
        suggestion=finding.suggestion,
        others=(*(f"{at}. {title(one, alone=alone)}" for at, one in others), *open_lines(triage)),
        commands=tuple(dict.fromkeys(_commands(triage, finding, ask))),
    )


def strongest_proofs(triage: TriageResult, finding: Finding, ask: Ask) -> list[Proof]:
    """Return the proofs of a finding, the strongest first; `ask` makes the command line that shows the same figures.

    Delays of the running job prove most; of evidence one counts, because related events are seen together.
    """
    proofs = []
    confirmed = triage.confirmed
    if confirmed is not None and confirmed.verdict == "confirmed" and {*confirmed.held_up_by} & {*finding.ranks}:
        proofs.append(Proof("delays", confirmed_in_words(confirmed), ask("triage")))
    proofs += _evidence(finding.explanations, "explains")[:1]
    proving = [one for one in finding.evidence if one.kind not in _LIMITS | _OF_PRICE]
    # A stable sort keeps the order of equals.
    for one in sorted(proving, key=lambda one: one.kind in _FURTHER):
        shown = one.shown_by
        command = None if shown is None else ask(shown.analysis, *options_of(shown))
        proofs.append(Proof("recording", one.sentence, command))
    return [*proofs, *_evidence(finding.explanations, "consistent")]


def _evidence(explanations: Sequence[Explanation], word: Word) -> list[Proof]:
    return [Proof("evidence", one.sentence, one.command) for one in _parts(explanations, words=(word,)) if one.sentence]


def _parts(explanations: Sequence[Explanation], words: Sequence[Word] = _WORDS) -> Iterator[PartOfTicket]:
    if not explanations:
        return
    from kair_tui.render.explanations import explanation_in_words

    for one in sorted((one for one in explanations if one.word in words), key=lambda one: words.index(one.word)):
        yield PartOfTicket(one.part, one.word, explanation_in_words(one), one.command)


def _against(triage: TriageResult, finding: Finding) -> Iterator[str]:
    confirmed = triage.confirmed
    if confirmed is not None and confirmed.verdict in _AGAINST and {*confirmed.accused} & {*finding.ranks}:
        yield confirmed_in_words(confirmed)
    yield from (one.sentence for one in finding.evidence if one.kind in _LIMITS)


def _differences(found: Sequence[Difference], ranks: tuple[Rank, ...]) -> Iterator[str]:
    of_it = [one for one in found if {*one.ranks} & {*ranks} or one.against != "peers"]
    if of_it:
        from kair_tui.render.differences import difference_in_words

        yield from _first(map(difference_in_words, of_it), len(of_it))


def _happenings(found: Sequence[Happening], number: int, finding: Finding) -> Iterator[str]:
    of_it = [one for one in found if one.finding in (0, number)]
    if of_it:
        from kair_tui.render.differences import happening_in_words

        yield from _first((happening_in_words(one, finding) for one in of_it), len(of_it))


def _first(sentences: Iterable[str], number: int) -> Iterator[str]:
    for at, sentence in enumerate(sentences):
        if at == _MOST:
            yield f"and {number - _MOST} more"
            return
        yield sentence


def _commands(triage: TriageResult, finding: Finding, ask: Ask) -> Iterator[str]:
    yield ask("triage")
    if triage.steps and triage.is_sampled and finding.ranks:
        yield ask("rank", "--rank", str(finding.ranks[0]))
    for one in finding.evidence:
        if one.shown_by is not None:
            yield ask(one.shown_by.analysis, *options_of(one.shown_by))


def fingerprint_facts(of: Fingerprint) -> list[tuple[str, str]]:
    """Return names and values that identify a recording."""
    facts_of = [
        ("job", of.job),
        ("recording", of.recording),
        ("digest", of.digest),
        ("ranks", f"{plural(len(of.ranks), 'rank')} of {of.world_size}"),
        ("steps", f"{len(of.steps)} ({spans(of.steps)})" if of.steps else "none"),
    ]
    if of.begin_ns is not None and of.end_ns is not None:
        facts_of.append(("time", f"{utc(of.begin_ns)} to {utc(of.end_ns)} UTC"))
    facts_of += [("evidence", "; ".join(of.sources) or "the recording alone"), ("kair", of.kair)]
    return facts_of


def ticket_text(ticket: TicketResult) -> str:
    """Return the ticket as Markdown; for `--drain` its commands alone. Names in it are no markup or links."""
    if ticket.asked == "drain":
        return "".join(clean(one.command + one.outcome) + "\n" for one in ticket.drain)
    messages = [one.message for one in warnings_in_words(ticket.warnings)]
    known = [*_first(messages, len(messages))]
    return filled("ticket.md", ticket=ticket, known=known, fingerprint=fingerprint_facts(ticket.fingerprint))


VIEW = View[TicketResult, Proof](
    main="proofs",
    columns=(
        Column[Proof]("source", "source", lambda row: row.source, align="left"),
        Column[Proof]("sentence", "proof", lambda row: row.sentence, align="left", weight=9),
        Column[Proof]("command", "shown by", lambda row: row.command or "–", align="left"),
    ),
    headline=lambda ticket: ticket.title,
    body=lambda ticket, page: page.lines_of([ticket.summary, *(one.sentence for one in ticket.proofs)]),
    records=(("proofs", "proof"), ("parts", "part"), ("drain", "drain")),
    text=ticket_text,
    is_markdown=lambda ticket: ticket.asked != "drain",
)
