"""Recordings of a job into which faults are put: drawn from one that was made, healthy but for the fault.

The faults that `kair sensitivity` puts on one rank of a recording, and whether stage 1 finds them.

One slow link in a drawn recording, and whether stage 1 names it.

The healthy job within a recording: what stands out is taken out, so that other faults can be put in.

Recordings that could have been made of the same job, drawn from one that was.

What a rank differs in for good stays; what changes from step to step is drawn again (bootstrap over steps). Without
that separation the noise of the recording would count twice, and a longer one would seem to hold it for good. Steps
are drawn in blocks as long as they depend on one another: slowness that comes in spells does so in what is drawn.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, LINK_SHARE, Anomaly
from kair_engine.localize.detect import detect
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.excess_table import ExcessTable, OperatorTable
from kair_engine.localize.large_delays import counted
from kair_engine.localize.links import FEWEST_SIBLINGS, SlowLink, above_siblings
from kair_engine.localize.noise import inflation
from kair_engine.results import SMALLEST_SHARE
from kair_engine.results.sensitivity import InjectedFault
from kair_engine.stats import TRIM, median, trimmed_mean

COMPUTE, INPUT, HOST = (CLASSES.index(name) for name in ("compute", "input", "host"))
STALL_LENGTH = 0.25
"""Of the step: how long an injected stall lasts."""


@dataclass(frozen=True)
class RankFault:
    """A lasting fault of one rank: what size 1 of it adds per step, to a class and to operators of it."""

    fault: InjectedFault
    row: int
    """Of CLASSES."""
    added_ns: Floats
    """Per rank; 0 where it cannot have the fault."""
    operators: Mapping[str, Floats]
    own_ns: Floats | None = None
    """Per rank, what it spends on this anyway; None where a ratio to it says nothing."""
    operator: str | None = None
    """The one operator that is slow."""


def rank_faults(table: ExcessTable) -> tuple[RankFault, ...]:
    """Sizes are in units of the rank's self time (device, operator) or in ns per step (input, host)."""
    own, anyone = table.work_ns, np.ones(len(table.role))
    compute = {name: one.typical_ns for name, one in table.of_operator.items() if not one.fetches}
    most = max(compute, key=lambda name: float(compute[name].sum()), default=None)
    only = {} if most is None else {most: compute[most]}
    slowed = only.get(most or "", 0 * anyone)
    fetches = {name: float(one.typical_ns.sum()) for name, one in table.of_operator.items() if one.fetches}
    fetch = max(fetches, key=lambda name: fetches[name], default=None)
    fetching = anyone * (own[INPUT] > 0)
    return (
        RankFault("slow_device", COMPUTE, own[COMPUTE], compute, own[COMPUTE]),
        RankFault("slow_operator", COMPUTE, slowed, only, slowed, most),
        RankFault("slow_input", INPUT, fetching, {} if fetch is None else {fetch: fetching}, own[INPUT]),
        RankFault("slow_host", HOST, anyone, {}),
    )


def with_slow_rank(table: ExcessTable, fault: RankFault, rank: int, size: float) -> ExcessTable:
    """Return the recording with that fault on one rank in every step, and everybody waiting for it."""
    members = np.flatnonzero(table.role == table.role[rank])
    every, more_ns = np.arange(len(table.by_step_ns)), size * float(fault.added_ns[rank])
    excess = table.by_step_ns.copy()
    excess[:, fault.row] = _slower(excess[:, fault.row], members, rank, every, more_ns)
    of_operator = dict(table.of_operator)
    for name, added in fault.operators.items():
        one = of_operator[name]
        slower = _slower(one.excess_ns, members, rank, every, size * float(added[rank]))
        of_operator[name] = OperatorTable(one.fetches, slower, one.typical_ns)
    return replace(table, by_step_ns=excess, step_times_ns=table.step_times_ns + more_ns, of_operator=of_operator)


def with_stalls(table: ExcessTable, rank: int, steps: Ints) -> ExcessTable:
    """Return the recording with one rank's host standing still in those steps, and everybody waiting for it."""
    members = np.flatnonzero(table.role == table.role[rank])
    excess, times = table.by_step_ns.copy(), table.step_times_ns.copy()
    length = STALL_LENGTH * times[steps]
    excess[:, HOST] = _slower(excess[:, HOST], members, rank, steps, length)
    times[steps] += length
    return replace(table, by_step_ns=excess, step_times_ns=times)


def finds(table: ExcessTable, rank: int, row: int) -> bool:
    """Whether stage 1 accuses that rank, alone, of that class of operations, in some steps or in all."""
    found = detect(table, sought=rank, onsets=False).anomalies
    return any(one.positions == (rank,) and one.class_index == row for one in found)


def _slower(values: Floats, members: Ints, rank: int, steps: Ints, more_ns: Floats | float) -> Floats:
    """Excesses (steps × ranks) with a rank slower in some steps, about its role's new median.

    Of many ranks that hardly moves; of two it lies halfway between them, so that half of the fault shows on either.
    """
    result = values.copy()
    result[steps, rank] += more_ns
    moved = median(result[:, members]) - median(values[:, members])
    result[:, members] -= moved[:, None]
    return result


def without_faults(table: ExcessTable, found: Sequence[Anomaly]) -> ExcessTable:
    """Return the job without what the anomalies are about.

    Of a rank that is slow in all steps its class, and its operators of that class, come down to the mean of its
    role's other ranks; steps in which a rank stalled get what is usual for it in the others.
    """
    return _without_stalls(_without_lasting(table, found), found)


def _without_lasting(table: ExcessTable, found: Sequence[Anomaly]) -> ExcessTable:
    steady = [one for one in found if one.kind != "intermittent"]
    slow = np.isin(np.arange(len(table.role)), [rank for one in steady for rank in one.positions])
    excess, work = table.by_step_ns.copy(), table.work_ns.copy()
    operators = {name: one.excess_ns.copy() for name, one in table.of_operator.items()}
    for rank, row in sorted({(rank, one.class_index) for one in steady for rank in one.positions}):
        peers = np.flatnonzero((table.role == table.role[rank]) & ~slow)
        if not len(peers):
            continue
        work[row, rank] -= _above(excess[:, row], rank, peers)
        excess[:, row, rank] -= _above(excess[:, row], rank, peers)
        for name, values in operators.items():
            if row == CLASSES.index("input" if table.operators[name] else "compute"):
                values[:, rank] -= _above(values, rank, peers)
    return _with(replace(table, work_ns=work), excess, operators)


def _without_stalls(table: ExcessTable, found: Sequence[Anomaly]) -> ExcessTable:
    hit = counted(table)
    excess = table.by_step_ns.copy()
    operators = {name: one.excess_ns.copy() for name, one in table.of_operator.items()}
    for rank in sorted({rank for one in found if one.kind == "intermittent" for rank in one.positions}):
        stalled = hit[:, rank]
        if stalled.any() and not stalled.all():
            excess[stalled, :, rank] = np.median(excess[~stalled, :, rank], axis=0)
            for values in operators.values():
                values[stalled, rank] = np.median(values[~stalled, rank])
    return _with(table, excess, operators)


def _above(values: Floats, rank: int, peers: Ints) -> float:
    """How far one rank's mean of `values` (steps × ranks) lies above its peers'."""
    mean = trimmed_mean(values, TRIM, axis=0)
    return float(mean[rank] - mean[peers].mean())


def _with(table: ExcessTable, by_step_ns: Floats, operators: dict[str, Floats]) -> ExcessTable:
    of_operator = {
        name: OperatorTable(one.fetches, operators[name], one.typical_ns) for name, one in table.of_operator.items()
    }
    return replace(table, by_step_ns=by_step_ns, of_operator=of_operator)


_TRIED = 100
"""Draws that the noise of a mean is known from."""


@dataclass(frozen=True)
class Draw:
    """One recording: the recorded steps it consists of, as many as the longest has, and who differs in it like whom.

    A rank that a fault was taken out of differs from its peers like another one does, since its own way is not known.
    """

    steps: Ints
    like: Ints


@dataclass(frozen=True)
class Separated:
    """A quantity per rank, taken apart."""

    lasting: Floats
    """(… × ranks)."""
    changing: Floats
    """(steps × … × ranks)."""

    def drawn(self, draw: Draw, steps: int) -> Floats:
        """Return the quantity in the first `steps` steps of a drawn recording."""
        return np.asarray(self.lasting[..., draw.like] + self.changing[draw.steps[:steps]])

    def of(self, row: int) -> "Separated":
        """One of several quantities that were taken apart together."""
        return Separated(self.lasting[row], self.changing[:, row])


@dataclass(frozen=True)
class Source:
    """A healthy job that recordings are drawn from."""

    table: ExcessTable
    classes: Separated
    operators: Mapping[str, Separated]
    block: int = 1
    """Steps that are drawn together."""

    def recording(self, draw: Draw, steps: int) -> ExcessTable:
        """Return the first `steps` steps of a drawn recording."""
        of_operator = {
            name: OperatorTable(one.fetches, self.operators[name].drawn(draw, steps), one.typical_ns)
            for name, one in self.table.of_operator.items()
        }
        times = self.table.step_times_ns[draw.steps[:steps]]
        return replace(
            self.table, by_step_ns=self.classes.drawn(draw, steps), step_times_ns=times, of_operator=of_operator
        )


def source_of(table: ExcessTable, known: Bools, random: np.random.Generator) -> Source:
    """Take a job's excesses apart; ranks that are not `known` (a fault was taken out of them) contribute nothing."""
    parts = [take_apart(table.by_step_ns[:, row], table.role, known, random) for row in range(len(table.work_ns))]
    return Source(
        table,
        Separated(np.stack([one.lasting for one in parts]), np.stack([one.changing for one in parts], axis=1)),
        {name: take_apart(one.excess_ns, table.role, known, random) for name, one in table.of_operator.items()},
        max(block_of(table.by_step_ns[:, row]) for row in range(len(table.work_ns))),
    )


def block_of(per_step: Floats) -> int:
    """For how many steps on end those of (steps × ranks) depend on one another, as far as a mean is concerned."""
    return max(round(inflation(per_step)), 1)


def in_blocks(recorded: int, count: int, block: int, random: np.random.Generator) -> Ints:
    """`count` of the recorded steps in blocks; what follows the last step is the first one (circular blocks)."""
    begins = random.integers(recorded, size=-(-count // block))
    return np.asarray((begins[:, None] + np.arange(block)).reshape(-1)[:count] % recorded)


def draw_steps(
    recorded: int, longest: int, family: Ints, known: Bools, *, block: int, random: np.random.Generator
) -> Draw:
    """Return a recording of `longest` steps; a shorter one is its beginning."""
    like = np.arange(len(family))
    for place in np.flatnonzero(~known):
        peers = np.flatnonzero((family == family[place]) & known)
        if len(peers):
            like[place] = random.choice(peers)
    return Draw(in_blocks(recorded, longest, block, random), like)


def take_apart(
    values: Floats, family: Ints, known: Bools, random: np.random.Generator, trim: float = TRIM
) -> Separated:
    """`values` (steps × ranks) as what lasts and what changes; ranks of one `family` are compared with each other.

    The variance between the ranks' means is what lasts plus the noise of a mean, which a bootstrap shows: the ranks'
    distances from their family's mean are shrunk by the root of the lasting share.
    """
    steps, mean = len(values), trimmed_mean(values, trim, axis=0)
    # Deviations from their own mean are too small by this factor.
    changing = (values - mean) * math.sqrt(steps / max(steps - 1, 1))
    block = block_of(values)
    again = [trimmed_mean(changing[in_blocks(steps, steps, block, random)], trim, axis=0) for _ in range(_TRIED)]
    between, of_noise = _within(mean[None], family, known), _within(np.stack(again), family, known)
    share = math.sqrt(max(0.0, 1 - of_noise / between)) if between > 0 else 0.0
    lasting = mean.copy()
    for code in np.unique(family[known]):
        peers = np.flatnonzero((family == code) & known)
        centre = mean[peers].mean()
        lasting[peers] = centre + share * (mean[peers] - centre)
    return Separated(lasting, changing)


def lasting_spread(parts: Separated, family: Ints, known: Bools) -> float:
    """Return the standard deviation of what lasts, within the families."""
    return math.sqrt(_within(parts.lasting[None], family, known))


def _within(values: Floats, family: Ints, known: Bools) -> float:
    """Variance between the known ranks of a family, pooled over families and averaged over the first axis."""
    squares, df = 0.0, 0
    for code in np.unique(family[known]):
        of_family = values[:, known & (family == code)]
        squares += float(((of_family - of_family.mean(axis=1, keepdims=True)) ** 2).sum(axis=1).mean())
        df += of_family.shape[1] - 1
    return squares / df if df else 0.0


@dataclass(frozen=True)
class HealthyLinks:
    """What the links with siblings spent in transfers themselves, those that are slow as fast as their siblings."""

    expected_ns: Floats
    """Per link and step, on average."""
    ratios: Separated
    """Self time over expected, per link."""
    family: Ints
    known: Bools
    """False where a fault was taken out of the link."""
    step_time_ns: float
    block: int
    """Steps that are drawn together."""

    @property
    def comparable(self) -> Ints:
        """Those whose family is large enough for a test."""
        return np.flatnonzero(np.bincount(self.family)[self.family] >= FEWEST_SIBLINGS)

    @property
    def own_ns(self) -> Floats:
        """Per link and step, without a fault."""
        return np.asarray(self.ratios.lasting * self.expected_ns)


def healthy_links(job: JobExcess, slow: Iterable[SlowLink], random: np.random.Generator) -> HealthyLinks | None:
    """Return the job's links without what the slow ones take longer; None where none can be compared."""
    names = dict.fromkeys(link for step in job.steps for link in step.links)
    times = {link: [step.links.get(link) for step in job.steps] for link in names}
    if not times:
        return None
    example = [next(one for one in of_step if one is not None) for of_step in times.values()]
    number = {family: code for code, family in enumerate(dict.fromkeys(one.family for one in example))}
    own, expected = (
        np.array([[np.nan if one is None else getattr(one, name) for one in of_step] for of_step in times.values()])
        for name in ("own_ns", "expected_ns")
    )
    mean = np.maximum(np.nanmean(expected, axis=1), 1.0)
    ratios = own / mean[:, None]
    # A step in which a link did nothing says nothing of it.
    ratios = np.where(np.isnan(ratios), np.nanmean(ratios, axis=1)[:, None], ratios)
    slow_ones = {one.link for one in slow}
    known = np.array([link not in slow_ones for link in times])
    ratios[~known] += 1 - ratios[~known].mean(axis=1, keepdims=True)
    family = np.array([number[one.family] for one in example])
    parts = take_apart(ratios.T, family, known, random, trim=0.0)
    found = HealthyLinks(mean, parts, family, known, job.step_time_ns, block_of(ratios.T))
    return found if len(found.comparable) else None


def finds_slow_link(links: HealthyLinks, draw: Draw, steps: int, victim: int, size: float) -> bool:
    """Whether a link whose self time grows by `size` (a share of it) is named."""
    siblings = np.flatnonzero(links.family == links.family[victim])
    ratios = links.ratios.drawn(draw, steps)[:, siblings]
    ratios[:, siblings == victim] *= 1 + size
    expected_ns = links.expected_ns[siblings] * steps
    # One family at a time: the other ones' share of the false-alarm rate is taken off by hand.
    p_below = FALSE_ALARM_RATE * LINK_SHARE / (int(links.family.max()) + 1)
    least_ns = SMALLEST_SHARE * links.step_time_ns * steps
    is_slow, _ = above_siblings(ratios, ratios.mean(axis=0) * expected_ns, expected_ns, p_below, least_ns)
    return bool(is_slow[siblings == victim].all())
