"""Where the GPU-time of a step goes: parts of all ranks' steps that add up, with the bubble apart from other waiting.

What a rank waits for others divides by the ideal job, in which nothing takes longer than on its peers: what it waits
there too is bubble, and no rank is at fault for it. The rest it waits for stragglers.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.errors import InputError, UsageError
from kair_engine.localize.unnamed_collectives import with_collectives_marked
from kair_engine.ranks import Rank
from kair_engine.results.step_bar import (
    BAR_PARTS,
    JOB_WIDE_PARTS,
    BarPart,
    BubbleFrom,
    PartOfBar,
    PartOfJobWide,
    RankBar,
    StepBar,
)
from kair_engine.timeline.account import KINDS, WHEN, Account, AccountKind, AccountOfSteps, When
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.host_time import Lead, Leads, lead
from kair_engine.timeline.roles import roles
from kair_engine.timeline.some_ranks import SomeRanks, some_ranks_each
from kair_engine.timeline.step_parts import PARTS, UNKNOWN
from kair_engine.trace.batches import first_steps
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import INSIDE_UNKNOWN, Operations
from kair_engine.whatif.analysis import model_asked_of
from kair_engine.whatif.model import Model

MOST_RANKS: Final = 64
"""The ranks whose bars are shown."""
_COMPUTE, _TRANSFER, _WAITING, _INPUT, _HOST, _REST = range(len(PARTS))


@dataclass
class StepPartsTally:
    """Adds up the parts of steps as they pass, which come in order."""

    ranks: Ints
    chosen: frozenset[int]
    """The steps that are divided."""
    steps_end_together: bool
    """Whether a rank that is done waits until all are: where a step is no more than its operations."""
    role: Ints | None = None
    """(ranks): a code, where roles are known."""
    waited_for_ns: Floats = field(init=False)
    """(2 × ranks): what the others of its role, and those of other roles, waited for each, summed over steps; 0 of
    large steps."""
    parts_ns: Floats = field(init=False)
    """(PARTS and UNKNOWN × ranks), summed over steps."""
    spent_ns: dict[int, Floats] = field(default_factory=dict)
    """Step → (KINDS × WHEN × ranks): the account's rows, in large steps without who met whom."""
    graphs_ns: Floats = field(init=False)
    """(ranks): in CUDA graphs of which only begin and end are recorded, summed over steps."""
    threads_communicate: bool = False
    """Whether threads carry the communication although there is a device, as gloo's do."""
    _leads: list[tuple[Ints, Lead]] = field(default_factory=list)
    seen: Ints = field(init=False)
    """(ranks): in how many steps each was."""
    steps: int = 0
    _accounts: AccountOfSteps = field(init=False)
    _length_ns: dict[int, int] = field(default_factory=dict)
    """Step → from its first rank's begin to its last one's end."""
    _pending_ns: Floats = field(init=False)
    """Of a large step, whose ranks are looked at in turns."""

    def __post_init__(self) -> None:
        self.parts_ns = np.zeros((UNKNOWN + 1, len(self.ranks)))
        self.seen = np.zeros(len(self.ranks), dtype=np.int64)
        self.waited_for_ns = np.zeros((2, len(self.ranks)))
        self.graphs_ns = np.zeros(len(self.ranks))
        self._accounts = AccountOfSteps()
        self._pending_ns = np.zeros_like(self.parts_ns)

    @classmethod
    def of(cls, trace: Trace, role: Ints | None = None) -> "StepPartsTally":
        """Return an empty one, for the first steps that fit into the sample, and one at least."""
        ranks = np.array(trace.job.ranks, dtype=np.int64)
        return cls(ranks, frozenset(first_steps(trace, trace.steps)), trace.job.format == "whatif", role)

    def empty(self) -> "StepPartsTally":
        """Another one for the same steps."""
        return StepPartsTally(self.ranks, self.chosen, self.steps_end_together, self.role)

    def add(self, other: "StepPartsTally") -> None:
        """Add what other steps came to."""
        self.parts_ns += other.parts_ns
        self.spent_ns |= other.spent_ns
        self.graphs_ns += other.graphs_ns
        self.waited_for_ns += other.waited_for_ns
        self.seen += other.seen
        self.steps += other.steps
        self.threads_communicate |= other.threads_communicate
        self._leads += other._leads

    def look(self, ops: Operations, sync: Synchronisation) -> None:
        """Divides a step, if it is chosen."""
        if ops.step in self.chosen:
            rows, parts = self._added_up(ops, sync)
            self._count(ops, parts)
            self._count_waiting(ops, rows)

    def _added_up(self, ops: Operations, sync: Synchronisation | None) -> tuple[Account, Floats]:
        """Add a step's rows to the kinds, and return them with their parts (PARTS and UNKNOWN × ranks)."""
        rows, place = self._accounts.of_step(ops, sync), np.searchsorted(self.ranks, ops.ranks)
        self.threads_communicate |= ops.has_device and bool((ops.communication & ~ops.on_stream).any())
        if ops.has_device and ops.runs_ahead:
            self._leads.append((place, lead(ops)))
        spent = self.spent_ns.setdefault(ops.step, np.zeros((len(KINDS), len(WHEN), len(self.ranks))))
        spent[:, :, place] += rows.sums(len(place))
        graphs = np.isin(rows.operator, [code for code, text in ops.name_text.items() if text.endswith(INSIDE_UNKNOWN)])
        np.add.at(self.graphs_ns, place[rows.rank[graphs]], rows.ns[graphs])
        parts = np.zeros_like(self.parts_ns)
        parts[:, place] = rows.in_parts(len(ops.ranks))
        return rows, parts

    @property
    def leads(self) -> Leads | None:
        """How far hosts are ahead; None where they do not run ahead."""
        return Leads.of(self.ranks, self._leads) if self._leads else None

    @property
    def divided(self) -> tuple[int, ...]:
        """The numbers of the steps that were divided."""
        return tuple(sorted(self.spent_ns))

    def by_step_ns(self, kinds: Sequence[AccountKind], when: Sequence[When] = WHEN) -> Floats:
        """Return (divided steps × ranks) what ranks spend on some kinds; 0 where a rank has no such step."""
        chosen = np.ix_([KINDS.index(one) for one in kinds], [WHEN.index(one) for one in when])
        of_steps = [self.spent_ns[step][chosen].sum(axis=(0, 1)) for step in self.divided]
        return np.array(of_steps).reshape(-1, len(self.ranks))

    def of_kinds_ns(self, kinds: Sequence[AccountKind], when: Sequence[When] = WHEN) -> Floats:
        """Return what each rank (in their order) spends on some kinds in the mean step."""
        return np.asarray(self.by_step_ns(kinds, when).sum(axis=0) / np.maximum(self.seen, 1))

    def _count_waiting(self, ops: Operations, rows: Account) -> None:
        """Add up who is waited for; one role waits for another also in the ideal job."""
        if self.role is None:
            return
        waits = rows.chosen(rows.owner != NONE)
        place = np.searchsorted(self.ranks, ops.ranks)
        owner, waiter = place[waits.owner], place[waits.rank]
        other = (self.role[owner] != self.role[waiter]).astype(np.int64)
        np.add.at(self.waited_for_ns, (other, owner), waits.ns)

    def look_at_some(self, ops: Operations) -> None:
        """Divides the time of some ranks of a large step, whose communication is not matched yet."""
        if ops.step in self.chosen:
            self._pending_ns += self._added_up(ops, None)[1]

    def look_at_meetings(self, sync: Synchronisation) -> None:
        """End a large step: its exposed communication divides into waiting and transfer as all of it does."""
        ops = sync.collectives.ops
        if ops.step not in self.chosen:
            return
        known = sync.collectives
        of_rank, count = ops.rank[known.row], len(ops.ranks)
        own = np.minimum(sync.own_ns[known.instance], known.duration_ns).astype(float)
        transfer = np.bincount(of_rank, weights=own, minlength=count)
        waited = np.bincount(of_rank, weights=known.duration_ns - own, minlength=count)
        unknown = (
            np.bincount(ops.rank, weights=ops.duration_ns * ops.communication, minlength=count) - transfer - waited
        )
        shares = np.stack((transfer, waited, np.maximum(unknown, 0.0)))
        shares /= np.maximum(shares.sum(axis=0), 1.0)
        place, parts = np.searchsorted(self.ranks, ops.ranks), self._pending_ns
        self._pending_ns = np.zeros_like(parts)
        exposed = parts[UNKNOWN].copy()
        parts[UNKNOWN] = 0.0
        for part, share in zip((_TRANSFER, _WAITING, UNKNOWN), shares, strict=True):
            parts[part, place] += exposed[place] * share
        self._count(ops, parts)

    def meet(self, sync: Synchronisation) -> None:
        """Count a step that `look_by_rank` is given some ranks of at a time."""
        ops = sync.collectives.ops
        self.steps += 1
        if len(ops.ranks):
            self._length_ns[ops.step] = int((ops.begin_ns + ops.length_ns).max() - ops.begin_ns.min())

    def look_by_rank(self, seen: SomeRanks) -> None:
        """Divides the time of some ranks, whose communication is matched."""
        parts, place = self._accounts.parts_of(seen), np.searchsorted(self.ranks, seen.rank)
        if self.steps_end_together:
            length = np.array([self._length_ns[step] for step in seen.step.tolist()], dtype=float)
            parts[_WAITING] += np.maximum(length - parts.sum(axis=0), 0.0)
        np.add.at(self.parts_ns.T, place, parts.T)
        np.add.at(self.seen, place, 1)

    def _count(self, ops: Operations, parts: Floats) -> None:
        place = np.searchsorted(self.ranks, ops.ranks)
        self.parts_ns += parts
        self.seen[place] += 1
        self.steps += 1
        if self.steps_end_together and len(place):
            over = ops.begin_ns + ops.length_ns
            left = float(over.max() - ops.begin_ns.min()) - parts[:, place].sum(axis=0)
            self.parts_ns[_WAITING, place] += np.maximum(left, 0.0)


@dataclass(frozen=True)
class Bubble:
    """What ranks wait in the ideal job too."""

    ns: Mapping[int, float]
    """Per rank and step; of a rank that is not in it, what others of its role wait."""
    known_from: BubbleFrom | None


NO_REPLAY: Final = Bubble({}, None)


def bubble_of(model: Model | None, *, one_program: bool) -> Bubble:
    """Of ranks that all run one program none, as alike ranks arrive together; else what a replay of the ideal job says.

    `model` is of the same job; None where it cannot be replayed, or need not be.
    """
    if one_program:
        return Bubble({}, "one_program")
    try:
        return NO_REPLAY if model is None or not model.fits_memory() else Bubble(model.waits_if_ideal(), "replay")
    except (InputError, UsageError):
        return NO_REPLAY


def bar_of(trace: Trace) -> StepBar | None:
    """Of a recording of which nothing is known yet: its first steps are read, and replayed if need be."""
    trace, tally = with_collectives_marked(trace), StepPartsTally.of(trace)
    some = trace.select([step for step in trace.steps if step in tally.chosen])

    deque(map(tally.look_by_rank, some_ranks_each(some, tally.meet)), maxlen=0)
    return bar_of_job(tally, *bubble_by_roles(trace))


def bubble_by_roles(trace: Trace, named: Sequence[int] = ()) -> tuple[list[str], Bubble]:
    """Return (the role of every rank, the bubble of a job that no model was made of yet).

    Of steps that are too large for a replay some ranks stand for all, those that are `named` among them.
    """
    role_of = roles(trace)
    role = [role_of[rank].name for rank in trace.job.ranks]
    if len(set(role)) == 1:
        return role, bubble_of(None, one_program=True)
    try:
        model = model_asked_of(trace, named=named)
    except (InputError, UsageError):
        return role, NO_REPLAY
    return role, bubble_of(model, one_program=False)


def bar_of_jobs(jobs: Sequence[tuple[StepBar, int]]) -> StepBar | None:
    """Of several jobs with so many devices each: every device's time counts alike. None without a job."""
    devices = sum(of_job for _, of_job in jobs)
    if not devices:
        return None
    bars = [bar for bar, _ in jobs]
    weight = np.array([of_job for _, of_job in jobs]) / devices
    step = float(weight @ np.array([bar.step_time_us for bar in bars]))
    shares = weight @ np.array([[bar.share(part) for part in BAR_PARTS] for bar in bars])
    wide = weight @ np.array([[one.share for one in bar.job_wide] for bar in bars])
    known = {bar.bubble_from for bar in bars}
    return StepBar(
        step_time_us=step,
        parts=tuple(
            PartOfBar(part, share * step, share) for part, share in zip(BAR_PARTS, shares.tolist(), strict=True)
        ),
        job_wide=_job_wide(step, wide.tolist()),
        bubble_from=None if None in known else "replay" if "replay" in known else "one_program",
        steps=sum(bar.steps for bar in bars),
        unknown_us=step * float(weight @ np.array([bar.unknown_share for bar in bars])),
    )


def _job_wide(step_us: float, shares: Sequence[float]) -> tuple[PartOfJobWide, ...]:
    return tuple(
        PartOfJobWide(part, share * step_us, share) for part, share in zip(JOB_WIDE_PARTS, shares, strict=True)
    )


def bar_of_job(tally: StepPartsTally, role: Sequence[str], bubble: Bubble) -> StepBar | None:
    """Return the mean over ranks and steps; `role` has a name per rank. None where no step was divided."""
    seen = np.flatnonzero(tally.seen > 0)
    if not len(seen) or tally.parts_ns.sum() <= 0:
        return None
    alone = len(tally.ranks) == 1
    of_role = _of_roles(tally.ranks, role, bubble)
    ranks = tally.ranks[seen].tolist()
    divided = np.stack(
        [
            _divided(tally.parts_ns[:, place] / tally.seen[place], of_role[place], alone=alone)
            for place in seen.tolist()
        ],
        axis=1,
    )
    weight = tally.seen[seen] / tally.seen[seen].sum()
    mean, parts = divided @ weight, (tally.parts_ns[:, seen] / tally.seen[seen]) @ weight
    stragglers = divided[BAR_PARTS.index("stragglers")]
    longest = sorted(range(len(ranks)), key=lambda at: (-stragglers[at], ranks[at]))[:MOST_RANKS]
    bars = tuple(RankBar(Rank(ranks[at]), _parts_told(divided[:, at])) for at in longest)
    return _bar(mean, parts, bubble, tally.steps, () if alone else bars)


def bar_of_rank(parts_ns: Floats, rank: int, bubble: Bubble, steps: int, *, alone: bool) -> StepBar:
    """Of one rank: `parts_ns` (PARTS and UNKNOWN) is of the mean step; `alone` where no other rank is recorded."""
    return _bar(_divided(parts_ns, bubble.ns.get(rank, 0.0), alone=alone), parts_ns, bubble, steps, ())


def _bar(divided: Floats, parts: Floats, bubble: Bubble, steps: int, ranks: tuple[RankBar, ...]) -> StepBar:
    whole = max(float(divided.sum()), 1e-9)
    return StepBar(
        step_time_us=float(divided.sum()) / 1e3,
        parts=_parts_told(divided),
        job_wide=_job_wide(whole / 1e3, [float(parts[part]) / whole for part in (_INPUT, _HOST)]),
        bubble_from=bubble.known_from,
        steps=steps,
        unknown_us=float(parts[UNKNOWN]) / 1e3,
        ranks=ranks,
    )


def _divided(parts_ns: Floats, ideal_waiting_ns: float, *, alone: bool) -> Floats:
    """(BAR_PARTS) of (PARTS and UNKNOWN); of one rank alone all communication is with members that are not known."""
    bubble = min(float(parts_ns[_WAITING]), ideal_waiting_ns)
    unknown = float(parts_ns[UNKNOWN])
    of: dict[BarPart, float] = {
        "compute": float(parts_ns[_COMPUTE]),
        "bubble": bubble,
        "communication": float(parts_ns[_TRANSFER]) + (unknown if alone else 0.0),
        "stragglers": float(parts_ns[_WAITING]) - bubble,
        "job_wide": float(parts_ns[_INPUT] + parts_ns[_HOST]),
        "other": float(parts_ns[_REST]) + (0.0 if alone else unknown),
    }
    return np.array([max(of[part], 0.0) for part in BAR_PARTS])


def _parts_told(divided: Floats) -> tuple[PartOfBar, ...]:
    whole = max(float(divided.sum()), 1e-9)
    return tuple(PartOfBar(part, ns / 1e3, ns / whole) for part, ns in zip(BAR_PARTS, divided.tolist(), strict=True))


def _of_roles(ranks: Ints, role: Sequence[str], bubble: Bubble) -> list[float]:
    """Per rank its waiting in the ideal job; where it was not replayed the mean of its role's."""
    of_role: dict[str, list[float]] = {}
    for rank, name in zip(ranks.tolist(), role, strict=True):
        if rank in bubble.ns:
            of_role.setdefault(name, []).append(bubble.ns[rank])
    mean = {name: float(np.mean(values)) for name, values in of_role.items()}
    return [bubble.ns.get(rank, mean.get(name, 0.0)) for rank, name in zip(ranks.tolist(), role, strict=True)]
