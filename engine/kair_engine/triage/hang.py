"""Who has not arrived at which collective: triage of recordings of calls, which a hang leaves behind.

A collective is known by its process group and its number in it, the same on all members. Nothing here is a test:
who has called what is recorded, and says who is waited for.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.evidence import Evidence
from kair_engine.results.triage import Finding, RankedRank, TriageResult, Verdict
from kair_engine.trace.model import CollectiveCall, GroupProgress, Job, KairWarning, Trace

_MOST_FINDINGS = 16
_DEFAULT = "default_pg"
"""What PyTorch calls the process group of all ranks."""


@dataclass(frozen=True)
class _Group:
    """A process group, as all ranks that left a dump tell it."""

    words: str
    members: tuple[int, ...]
    of_rank: Mapping[int, GroupProgress]
    sequence: int
    """The number of the first collective that somebody called and nobody of all finished; −1 where there is none."""

    @property
    def waiting(self) -> tuple[int, ...]:
        """Who has called it and is in it."""
        return tuple(rank for rank, one in self.of_rank.items() if _call(one, self.sequence) is not None)

    @property
    def missing(self) -> tuple[int, ...]:
        """Who left a dump and has not called it."""
        return tuple(rank for rank, one in self.of_rank.items() if one.enqueued < self.sequence)

    @property
    def silent(self) -> tuple[int, ...]:
        """Members that left no dump."""
        return tuple(rank for rank in self.members if rank not in self.of_rank)

    @property
    def calls(self) -> dict[int, CollectiveCall]:
        """rank → its call of that number, of those that are in it."""
        found = ((rank, _call(one, self.sequence)) for rank, one in self.of_rank.items())
        return {rank: call for rank, call in found if call is not None}


def hang(trace: Trace) -> TriageResult:
    """The verdict on recordings of calls: `straggler` where somebody has not arrived, or called something else.

    A finding has no price: the job stands still. Ranks that are missing in one group because they wait in another are
    not accused as long as somebody is who waits nowhere.
    """
    job = trace.job
    groups = [group for group in _groups(job) if group.sequence >= 0]
    stuck = {rank for group in groups for rank in group.waiting} | _in_transfers(job)
    findings = _one_of_each(_findings(job, groups, stuck))[:_MOST_FINDINGS]
    accused = {rank for finding in findings for rank in finding.ranks}
    open_ended = job.missing_ranks or groups or _in_transfers(job)
    return TriageResult(
        verdict=_verdict(findings, open_ended=bool(open_ended)),
        findings=findings,
        ranking=_ranking(job, accused, groups),
        step_time_us=0.0,
        waiting_us_per_step=0.0,
        unattributed_us_per_step=0.0,
        steps=(),
        warnings=_warnings(job, groups, findings),
    )


def _verdict(findings: Sequence[Finding], *, open_ended: bool) -> Verdict:
    if any(finding.ranks for finding in findings):
        return "straggler"
    if findings:
        return "job_wide"
    return "inconclusive" if open_ended else "no_straggler"


def _groups(job: Job) -> Iterator[_Group]:
    """The process groups, in the order of their names; one name may be several sets of ranks."""
    found: dict[tuple[str, tuple[int, ...]], dict[int, GroupProgress]] = {}
    for rank, groups in sorted(job.progress.items()):
        for group in groups:
            found.setdefault((group.name, group.ranks), {})[rank] = group
    for (name, ranks), of_rank in sorted(found.items()):
        description = next((one.description for one in of_rank.values() if one.description), "")
        words = f"{name} ({description})" if description and description != name else name
        # Gloo does not list members; the default group is everybody.
        everybody = tuple(range(job.world_size)) if description == _DEFAULT else tuple(of_rank)
        yield _Group(words, ranks or everybody, of_rank, _stuck_at(of_rank))


def _stuck_at(of_rank: Mapping[int, GroupProgress]) -> int:
    """The number of the first collective that one rank called and has not finished, −1 for none."""
    pending = [call.sequence for one in of_rank.values() for call in one.pending[:1] if call.sequence >= 0]
    pending += [one.completed + 1 for one in of_rank.values() if not one.pending and one.enqueued > one.completed]
    return min(pending, default=-1)


def _call(progress: GroupProgress, sequence: int) -> CollectiveCall | None:
    found = next((call for call in progress.pending if call.sequence == sequence), None)
    if found is None and progress.completed < sequence <= progress.enqueued:
        # Called and not over by the group's own count, and dropped from the ring of calls.
        return CollectiveCall(sequence, "", "", 0, is_done=False, is_started=False)
    return found


def _in_transfers(job: Job) -> set[int]:
    return {rank for rank, groups in job.progress.items() if any(group.transfers for group in groups)}


def _findings(job: Job, groups: Sequence[_Group], stuck: set[int]) -> Iterator[Finding]:
    """The groups' findings, those first that hold up most ranks."""
    ordered = sorted(groups, key=lambda group: (-len(group.waiting), group.words))
    absent = {rank for group in groups for rank in (*group.missing, *group.silent)}
    roots = absent - stuck
    for group in ordered:
        odd = _odd_callers(group)
        missing = tuple(rank for rank in (*group.missing, *group.silent) if not roots or rank in roots)
        if odd:
            finding = _finding(job, group, odd, (_other_call(group, odd), *_last_completed(group)))
        elif missing:
            finding = _finding(job, group, missing, (*_absence(group, missing, stuck), *_last_completed(group)))
        elif not group.missing and not group.silent:
            finding = _all_arrived(job, group)
        else:
            continue  # whoever is missing here waits in another group, which has its own finding
        yield finding


def _one_of_each(findings: Iterator[Finding]) -> tuple[Finding, ...]:
    """One finding of the same ranks, with the evidence of all groups that wait for them."""
    merged: dict[tuple[tuple[Rank, ...], tuple[Rank, ...]], Finding] = {}
    for finding in findings:
        key = (finding.ranks, finding.seen_on)
        known = merged.get(key)
        merged[key] = finding if known is None else replace(known, evidence=(*known.evidence, *finding.evidence))
    return tuple(merged.values())


def _odd_callers(group: _Group) -> tuple[int, ...]:
    """Who called something else under that number than most did; of two equal halves the second."""
    calls = {rank: (call.operation, call.sizes) for rank, call in group.calls.items() if call.operation}
    operations = Counter(operation for operation, _ in calls.values())
    if len(operations) < 2:
        return ()
    usual = max(operations, key=lambda operation: operations[operation])
    return tuple(rank for rank, (operation, _) in calls.items() if operation != usual)


def _operation(group: _Group, ranks: Sequence[int] = ()) -> str:
    names = Counter(call.operation for rank, call in group.calls.items() if not ranks or rank in ranks)
    return max(names, key=lambda name: names[name], default="") or "a collective"


def _finding(job: Job, group: _Group, ranks: Sequence[int], evidence: tuple[Evidence, ...]) -> Finding:
    ordered = tuple(Rank(rank) for rank in sorted(ranks))
    return Finding(
        cause="hang",
        pattern="group" if len(ordered) > 1 else "persistent",
        ranks=ordered,
        hosts=_hosts(job, ordered),
        operator=_operation(group, [rank for rank in group.waiting if rank not in ranks]),
        edge=None,
        steps=(),
        p_value=None,
        time_lost_us_per_step=0.0,
        slowdown=1.0,
        evidence=evidence,
    )


def _all_arrived(job: Job, group: _Group) -> Finding:
    """Nobody is missing: what they are in does not come to its end."""
    seen = tuple(Rank(rank) for rank in group.waiting)
    figures = {"sequence": float(group.sequence), "members": float(len(group.members))}
    about = f"{_operation(group)} of process group {group.words}"
    evidence = (Evidence("all_arrived", figures, ranks=seen, about=about), *_last_completed(group))
    return Finding(
        cause="hang",
        pattern="job_wide",
        ranks=(),
        hosts=_hosts(job, seen),
        operator=_operation(group),
        edge=None,
        steps=(),
        p_value=None,
        time_lost_us_per_step=0.0,
        slowdown=1.0,
        evidence=evidence,
        seen_on=seen,
    )


def _absence(group: _Group, missing: Sequence[int], stuck: set[int]) -> Iterator[Evidence]:
    """Of those who have not arrived: who left a dump, who did not, who waits in another group."""
    about = f"{_operation(group)} of process group {group.words}"
    figures = {
        "sequence": float(group.sequence),
        "waiting": float(len(group.waiting)),
        "members": float(len(group.members)),
    }
    present = tuple(Rank(rank) for rank in missing if rank in group.of_rank)
    silent = tuple(Rank(rank) for rank in missing if rank not in group.of_rank)
    if present:
        yield Evidence("not_arrived", figures, ranks=present, about=about)
    if silent:
        yield Evidence("no_dump", figures, ranks=silent, about=about)
    if elsewhere := tuple(rank for rank in present if rank in stuck):
        yield Evidence("waits_elsewhere", ranks=elsewhere)


def _other_call(group: _Group, odd: Sequence[int]) -> Evidence:
    figures = {"sequence": float(group.sequence), "others": float(len(group.calls) - len(odd))}
    called = _operation(group, odd)
    usual = _operation(group, [rank for rank in group.calls if rank not in odd])
    about = f"{called} where the others called {usual}, in process group {group.words}"
    return Evidence("other_call", figures, ranks=tuple(Rank(rank) for rank in odd), about=about)


def _last_completed(group: _Group) -> tuple[Evidence, ...]:
    """The last collective that all who left a dump finished."""
    number = min(one.completed for one in group.of_rank.values())
    if number < 0:
        return ()
    calls = (one.last for one in group.of_rank.values() if one.last is not None and one.last.sequence == number)
    operation = next((call.operation for call in calls), "a collective")
    return (Evidence("last_completed", {"sequence": float(number)}, about=operation),)


def _hosts(job: Job, ranks: Sequence[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(job.hosts[rank] for rank in ranks if rank in job.hosts))


def _ranking(job: Job, accused: set[Rank], groups: Sequence[_Group]) -> tuple[RankedRank, ...]:
    """Who is accused first, then by how many wait for each; there is no score of a hang."""
    held_up = Counter(rank for group in groups for rank in group.missing for _ in group.waiting)
    order = sorted(job.ranks, key=lambda rank: (rank not in accused, -held_up[rank], rank))
    return tuple(
        RankedRank(
            rank=rank,
            host=job.hosts.get(rank),
            role="all",
            score=0.0,
            flagged=rank in accused,
            self_time_excess_us=0.0,
            wait_imposed_us=0.0,
        )
        for rank in order
    )


def _warnings(job: Job, groups: Sequence[_Group], findings: Sequence[Finding]) -> tuple[KairWarning, ...]:
    if job.missing_ranks and not groups:
        text = "nobody who left a dump waits for anything: of ranks without one nothing is known"
        return (KairWarning("dumps_missing", text),)
    in_transfers = _in_transfers(job)
    if in_transfers and not findings:
        text = "only sends and receives are under way: whom they wait for is not told by the dumps"
        return (KairWarning("transfers_open", text, ranks=tuple(Rank(rank) for rank in sorted(in_transfers))),)
    return ()
