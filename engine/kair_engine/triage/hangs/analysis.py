"""The verdict on recordings of calls, which a hang leaves behind: who has not arrived at which call.

Nothing here is a test: who has called what is recorded, and says who is waited for. What is asked, in this order:
who called something else than most members did; who is waited for and waits for nothing; who wait for each other; of
whom there is no recording; and, where nobody is missing, what does not come to its end.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank, in_order
from kair_engine.results import evidence_kinds as kinds
from kair_engine.results.evidence_kinds import Evidence
from kair_engine.results.triage import Finding, RankedRank, TriageResult, Verdict
from kair_engine.trace.model import Job, KairWarning, Trace
from kair_engine.triage.hangs import evidence as told
from kair_engine.triage.hangs.groups import Mismatch, mismatch_in
from kair_engine.triage.hangs.recordings import Sound, sound_recordings
from kair_engine.triage.hangs.waits import Place, TransferWait, Waits, open_questions, waits_of

_MOST_FINDINGS = 16
_MOST_TEXTS = 8
"""At most so many findings, and so many texts of a log with one of them."""


@dataclass(frozen=True)
class _Asked:
    """A job's recordings of calls, and what follows from them."""

    job: Job
    sound: Sound
    waits: Waits
    mismatches: tuple[Mismatch, ...]


def hang(trace: Trace) -> TriageResult:
    """`straggler` where somebody has not arrived, or called something else; a finding has no price.

    `job_wide` where nobody is missing, or nobody knows who of those is right that differ; `inconclusive` where it is
    not recorded who is missing.
    """
    sound = sound_recordings(trace.job)
    mismatches = tuple(found for found in map(mismatch_in, sound.groups) if found is not None)
    waits = waits_of(trace.job, sound)
    asked = _Asked(trace.job, sound, waits, mismatches)
    findings = _one_of_each(_findings(asked))[:_MOST_FINDINGS]
    accused = {rank for finding in findings for rank in finding.ranks}
    questions = () if findings else tuple(open_questions(trace.job, sound, waits))
    held_up = Counter(rank for place in waits.places for rank in place.missing for _ in place.waiting)
    held_up.update(one.call.peer for one in waits.transfers if not one.answered)
    return TriageResult(
        verdict=_verdict(findings, is_open=bool(questions)),
        findings=findings,
        ranking=ranked(trace.job, accused, held_up),
        step_time_us=0.0,
        waiting_us_per_step=None,
        unattributed_us_per_step=None,
        steps=(),
        warnings=(*sound.warnings, *questions),
    )


def nothing_known(job: Job, warnings: tuple[KairWarning, ...] = ()) -> TriageResult:
    """Return that nobody is known to be to blame."""
    return TriageResult("inconclusive", (), ranked(job, (), Counter()), 0.0, None, None, (), warnings)


def _verdict(findings: Sequence[Finding], *, is_open: bool) -> Verdict:
    if any(finding.ranks for finding in findings):
        return "straggler"
    if findings:
        return "job_wide"
    return "inconclusive" if is_open else "no_straggler"


def _findings(asked: _Asked) -> Iterator[Finding]:
    """Yield the first answer that there is, as what comes behind it follows from it."""
    for answers in (_unreachable, _mismatches, _missing, _circles, _silent, _named, _stuck, _linked, _nobody_missing):
        found = list(answers(asked))
        if found:
            yield from found
            return


def _unreachable(asked: _Asked) -> Iterator[Finding]:
    """Whose process did not answer when it was asked."""
    ranks = tuple(rank for rank, groups in asked.sound.progress.items() if any(one.unreachable for one in groups))
    if ranks:
        facts = (kinds.Unreachable(ranks=in_order(ranks)),)
        yield finding_of(asked.job, ranks, None, facts)


def _mismatches(asked: _Asked) -> Iterator[Finding]:
    for found in asked.mismatches:
        group, number = found.group, found.sequence
        usual = [rank for rank in found.said if rank not in found.odd]
        where = (*told.called_at(group, number, found.odd), *told.called_at(group, number, usual))
        operator = group.operation(number, usual)
        if found.odd:
            facts = (*told.other_calls(found), *where, *told.last_completed(group))
            yield finding_of(asked.job, found.odd, operator, facts)
        else:
            facts = (kinds.NoMajority(float(number), told.members_of(group)), *told.differing_calls(found), *where)
            yield finding_of(asked.job, (), operator, (*facts, *told.last_completed(group)), seen_on=found.said)


def _missing(asked: _Asked) -> Iterator[Finding]:
    """Who is waited for and waits for nothing, with all calls that they hold up, directly or by others."""
    waits, progress = asked.waits, asked.sound.progress
    of_roots: dict[tuple[int, ...], list[Place | TransferWait]] = {}
    for place in waits.places:
        if named := tuple(rank for rank in place.missing if rank in waits.roots):
            of_roots.setdefault(named, []).append(place)
    for wait in waits.transfers:
        if not wait.answered and wait.call.peer in waits.roots:
            of_roots.setdefault((wait.call.peer,), []).append(wait)
    for ranks, held in of_roots.items():
        places = [one for one in held if isinstance(one, Place)]
        transfers = [one for one in held if isinstance(one, TransferWait)]
        reached = [place for place in waits.places if place not in places and waits.leads_to(place.missing, ranks)]
        behind = [one for one in waits.transfers if one not in held and waits.leads_to((one.rank,), ranks)]
        facts = (
            *(one for place in places for one in _of_place(place, ranks)),
            *told.waits_for(transfers),
            *told.in_no_call(ranks, progress),
            *(
                told.of_place(kinds.HeldUp, place, place.missing)
                for place in reached
                if not set(place.missing) & waits.roots
            ),
            *told.waits_for(behind),
        )
        operator = places[0].group.operation(places[0].sequence) if places else transfers[0].call.operation
        yield finding_of(asked.job, ranks, operator, facts)


def _of_place(place: Place, ranks: Sequence[int]) -> Iterator[Evidence]:
    named = [rank for rank in ranks if rank in place.missing]
    yield told.of_place(kinds.NotArrived, place, named)
    yield from told.called_at(place.group, place.sequence, place.waiting)
    yield from told.last_completed(place.group)


def _circles(asked: _Asked) -> Iterator[Finding]:
    """Ranks that wait for each other: the order of their calls differs."""
    for circle in asked.waits.circles:
        places = [place for place in asked.waits.places if set(place.waiting) & set(circle)]
        transfers = [one for one in asked.waits.transfers if one.rank in circle]
        where = tuple(one for place in places for one in told.called_at(place.group, place.sequence, place.waiting))
        absent = tuple(told.of_place(kinds.NotArrived, place, place.missing) for place in places)
        odd = _odd_order(places) if not transfers else ()
        if odd:
            usual, other = places
            facts = (*absent, _other_order(usual, other, odd), *where)
            yield finding_of(asked.job, odd, places[0].group.operation(places[0].sequence), facts)
            continue
        first = places[0].group.operation(places[0].sequence) if places else transfers[0].call.operation
        facts = (kinds.WaitCircle(ranks=in_order(circle)), *told.waits_for(transfers), *absent, *where)
        yield finding_of(asked.job, (), first, facts, seen_on=circle)


def _odd_order(places: Sequence[Place]) -> tuple[int, ...]:
    """Of two groups the ranks that call them in another order than more than half of those that are in both."""
    if len(places) != 2:
        return ()
    usual, other = places
    of_both = set(usual.group.of_rank) & set(other.group.of_rank)
    return other.waiting if 2 * len(of_both & set(usual.waiting)) > len(of_both) else ()


def _other_order(usual: Place, other: Place, odd: Sequence[int]) -> Evidence:
    """Return that some wait in another group; what RAS counts by operation is one group for all of these."""
    (communicator, _, _), (same, _, _) = usual.group.name.rpartition(" "), other.group.name.rpartition(" ")
    if not communicator or communicator != same:
        return kinds.WaitsElsewhere(ranks=in_order(odd))
    called, expected = other.group.operation(other.sequence), usual.group.operation(usual.sequence)
    text = f"{called} where the others called {expected}, in process group {communicator}"
    return kinds.OtherCall(float(other.sequence), float(len(usual.waiting)), ranks=in_order(odd), about=text)


def _silent(asked: _Asked) -> Iterator[Finding]:
    """Yield the one rank of which there is nothing, where all others are held in what nobody else is missing from."""
    waits = asked.waits
    rank = waits.only_suspect
    if rank is None:
        return
    kind: told.Lacking = kinds.NoReport if asked.job.format != "flight_recorder" else kinds.NoDump
    places = [place for place in waits.places if rank in place.group.silent]
    transfers = [one for one in waits.transfers if one.call.peer == rank]
    facts = [*told.waits_for(transfers)]
    for place in places:
        facts += [
            told.of_place(kind, place, (rank,)),
            *told.called_at(place.group, place.sequence, place.waiting),
        ]
        facts += told.last_completed(place.group)
    if not places:
        facts.append(kinds.NoDump(ranks=in_order((rank,))))
    operator = places[0].group.operation(places[0].sequence) if places else transfers[0].call.operation
    yield finding_of(asked.job, (rank,), operator, facts)


def _named(asked: _Asked) -> Iterator[Finding]:
    """Whom the log itself names, and who does not wait for others by it."""
    for call in dict.fromkeys(one.call for one in asked.job.said if one.kind == "missing"):
        said = [one for one in asked.job.said if one.kind == "missing" and one.call == call]
        waiting = {rank for one in said for rank in one.by}
        ranks = {rank for one in said for rank in one.ranks} - waiting
        if ranks:
            told = dict.fromkeys(one.text for one in said if set(one.ranks) & ranks)
            facts = [kinds.LogNames(float(len(waiting)) or None, ranks=in_order(ranks), about=text) for text in told]
            yield finding_of(asked.job, in_order(ranks), call, facts[:_MOST_TEXTS])
            return


def _stuck(asked: _Asked) -> Iterator[Finding]:
    """Whose own watchdog is held up, though it waits in no call that is known."""
    said = [one for one in asked.job.said if one.kind == "stuck" and not set(one.ranks) & asked.waits.held]
    ranks = {rank for one in said for rank in one.ranks}
    if ranks and 2 * len(ranks) <= asked.job.world_size:
        facts = [kinds.StuckWatchdog(ranks=in_order(one.ranks), about=one.text) for one in said]
        yield finding_of(asked.job, in_order(ranks), None, facts[:_MOST_TEXTS])


def _linked(asked: _Asked) -> Iterator[Finding]:
    """Whose host's port to the network failed."""
    said = [one for one in asked.job.said if one.kind == "link"]
    ranks = {rank for one in said for rank in one.ranks}
    if ranks and 2 * len(ranks) <= asked.job.world_size and all(one.ranks for one in said):
        place = next(iter(asked.waits.places), None)
        operator = None if place is None else place.group.operation(place.sequence)
        facts = [kinds.LinkFailed(ranks=in_order(one.ranks), about=one.text) for one in said]
        yield finding_of(asked.job, in_order(ranks), operator, facts[:_MOST_TEXTS])


def _nobody_missing(asked: _Asked) -> Iterator[Finding]:
    """Yield what all its members are in, and nobody leaves; and sends whose receives are there."""
    waits = asked.waits
    if waits.lacking or waits.waited_for:
        return
    for place in waits.places:
        if place.group.is_whole:
            where = told.called_at(place.group, place.sequence, place.waiting)
            arrived = kinds.AllArrived(
                float(place.sequence),
                told.members_of(place.group),
                ranks=in_order(place.waiting),
                about=told.about(place.group, place.sequence),
            )
            facts = (arrived, *where, *told.last_completed(place.group))
            yield finding_of(asked.job, (), place.group.operation(place.sequence), facts, seen_on=place.waiting)
    met = [one for one in waits.transfers if one.answered]
    if met:
        ranks = tuple(dict.fromkeys(one.rank for one in met))
        facts = (kinds.TransfersMet(ranks=in_order(ranks)), *told.waits_for(met))
        yield finding_of(asked.job, (), met[0].call.operation, facts, seen_on=ranks)


def _one_of_each(findings: Iterator[Finding]) -> tuple[Finding, ...]:
    """One finding of the same ranks, with the evidence of all groups that wait for them."""
    merged: dict[tuple[tuple[Rank, ...], tuple[Rank, ...]], Finding] = {}
    for finding in findings:
        key = (finding.ranks, finding.seen_on)
        known = merged.get(key)
        merged[key] = finding if known is None else replace(known, evidence=(*known.evidence, *finding.evidence))
    return tuple(merged.values())


def finding_of(
    job: Job,
    accused: Collection[int],
    operator: str | None,
    facts: Sequence[Evidence],
    *,
    seen_on: Collection[int] = (),
) -> Finding:
    """Return that the job stands still for these ranks, or for nobody; `operator`: what the others wait in."""
    ranks, shown_on = in_order(accused), in_order(seen_on)
    return Finding(
        cause="hang",
        pattern="job_wide" if not ranks else "group" if len(ranks) > 1 else "persistent",
        ranks=ranks,
        hosts=tuple(dict.fromkeys(job.hosts[rank] for rank in ranks or shown_on if rank in job.hosts)),
        operator=operator,
        edge=None,
        steps=(),
        p_value=None,
        time_lost_us_per_step=0.0,
        slowdown=1.0,
        evidence=tuple(fact for at, fact in enumerate(facts) if fact not in facts[:at]),
        seen_on=shown_on,
    )


def ranked(job: Job, accused: Collection[Rank], held_up: Counter[int]) -> tuple[RankedRank, ...]:
    """Return who is accused first, then by how many ranks each holds up; there is no score of a hang."""
    order = sorted(job.ranks, key=lambda rank: (rank not in accused, -held_up[rank], rank))
    return tuple(RankedRank(rank, job.hosts.get(rank), "all", 0.0, rank in accused, 0.0, None) for rank in order)
