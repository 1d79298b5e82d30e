"""What of a rank's kernels takes longer than its peers', and what takes the same: a device slows all of them.

Compared are ranks with the peers that nobody accuses, over the steps since they became slow.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, zero_for_nan
from kair_engine.causes import Cause
from kair_engine.frozen import dataclass
from kair_engine.localize.compared import Compared
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.ranks import Position, Rank, ranks_at
from kair_engine.results.evidence_kinds import DeviceModels, Evidence, OneFamily, OneKernel, ShownBy, WholeDevice
from kair_engine.timeline.kernel_families import FAMILIES, OF_ARITHMETIC, OF_COPIES, OF_DATA, Family, family_of
from kair_engine.trace.measures import shown
from kair_engine.trace.model import Job
from kair_engine.triage.ranks.diagnosis import Diagnosis

ALIKE: Final = (0.5, 2.0)
"""A kernel is slower like the whole if its growth is this part of the whole's at least, and this many times at most."""
NEARLY_ALL: Final = 0.9
"""Of the usual compute, what has to be in kernels that are slower like the whole; and of what a rank loses, what has to
be in one family of kernels to be in that alone."""
AS_USUAL: Final = 0.1
"""Kernels take a rank as long as its peers if they differ by less than this part of what the slow ones grow by. A slow
device slows the least of its kernels by half of what it slows the rest (ALIKE): this lies well below."""
OF_ONE_MODEL: Final = 0.03
"""And by less than this share of what they take: healthy devices of one model differ by up to so much."""
FEWEST_KERNELS: Final = 4
"""Of fewer, nobody can say that it is not these."""
FEWEST_OF_ONE_BOUND: Final = 2
"""Kernels that arithmetic, or memory, bounds: a single one may have another reason."""
WORTH_COUNTING: Final = 0.01
"""Of the usual compute: a kernel that takes less says nothing by itself."""
LEAST_COPIES: Final = 1e-3
"""The same of copies in one direction: what costs less than this is latency, which no link's width changes."""

_COMPUTE: Final = CLASSES.index("compute")


@dataclass(frozen=True)
class Kernels:
    """How long kernels take on ranks in the mean step, and how long on their peers."""

    names: tuple[str, ...]
    """Of those that take some rank notably longer. What is left of each of FAMILIES follows, in that order."""
    takes_ns: Floats
    usual_ns: Floats
    peers: int

    @cached_property
    def families(self) -> tuple[Family, ...]:
        """Of each, and of what is left."""
        return (*map(family_of, self.names), *FAMILIES)

    @property
    def named(self) -> Bools:
        """Which are single kernels."""
        return np.arange(len(self.families)) < len(self.names)

    @cached_property
    def longer_ns(self) -> Floats:
        """Of each."""
        return self.takes_ns - self.usual_ns

    def growth(self, chosen: Bools | slice = slice(None)) -> float:
        """By what share of what they take peers some of them take longer together."""
        return float(self.longer_ns[chosen].sum() / max(float(self.usual_ns[chosen].sum()), 1.0))

    def counted(self) -> Bools:
        """Which take enough to say something."""
        return np.asarray(self.usual_ns >= WORTH_COUNTING * self.usual_ns.sum())

    def of(self, families: Collection[Family]) -> Bools:
        """Which are of these families."""
        return np.array([family in families for family in self.families])

    def alike(self, chosen: Bools) -> bool:
        """Whether these are all slower like they are together."""
        growth, whole = self.longer_ns[chosen] / np.maximum(self.usual_ns[chosen], 1.0), self.growth(chosen)
        return bool(((growth >= ALIKE[0] * whole) & (growth <= ALIKE[1] * whole)).all())

    def rest_is_as_usual(self, slow: Bools, kin: Bools | None = None) -> bool:
        """Whether nothing else takes longer, nor shorter, and `kin` by themselves do not; without any that is open."""
        rest = [~slow] if kin is None else [~slow, kin]
        most = min(AS_USUAL * self.growth(slow), OF_ONE_MODEL)
        enough = all(self.usual_ns[one].sum() >= WORTH_COUNTING * self.usual_ns.sum() for one in rest)
        return enough and all(abs(self.growth(one)) <= most for one in rest)

    def slowest(self, of: Bools) -> str | None:
        """Return the single kernel among these that takes longest beyond what it takes peers."""
        chosen = np.flatnonzero(of & self.named)
        return self.names[int(chosen[self.longer_ns[chosen].argmax()])] if len(chosen) else None


def kernels_of(of: Compared, accused: Collection[Position]) -> Kernels:
    """Compare what ranks run with what it takes those peers that are not `accused` either, where there are any."""
    job, peers = of.job, of.unaccused(accused)

    def both(spent: Floats) -> tuple[float, float]:
        of_rank = zero_for_nan(spent[of.later]).mean(axis=0)
        mine = float(of_rank[of.mine].mean())
        return mine, float(np.median(of_rank[peers])) if peers else mine

    names = tuple(name for name, fetches in job.operators.items() if not fetches)
    single = np.array([both(_spent_ns(job, name)) for name in names]).reshape(-1, 2)
    of_families = [np.stack([step.families_ns[at] for step in job.steps]) for at in range(len(FAMILIES))]
    left = np.array([both(spent) for spent in of_families])
    np.subtract.at(left, [FAMILIES.index(family_of(name)) for name in names], single)
    takes, usual = np.maximum(np.concatenate((single, left)), 0.0).T
    return Kernels(names, takes, usual, len(peers))


def _spent_ns(job: JobExcess, name: str) -> Floats:
    """Return (steps × ranks) what an operator takes; what is typical in steps in which no rank differs notably."""
    known = [step.operators.get(name) for step in job.steps]
    typical = np.nanmedian(np.stack([one.typical_ns for one in known if one is not None]), axis=0)
    return np.stack([typical if one is None else one.typical_ns + one.excess_ns for one in known])


def within_rank(of: Compared, accused: Collection[Position] = (), recorded: Job | None = None) -> Diagnosis | None:
    """Say why ranks are slow by what takes their devices as long as their peers', and what does not."""
    if (kernels := _of_devices(of, accused)) is None:
        return None
    whole = _throughout(of, kernels, accused, recorded)
    if whole is not None and whole.cause == "device_model":
        return whole
    return _slow_copies(of, kernels) or _one_family(of, kernels)


def slower_throughout(of: Compared, accused: Collection[Position] = ()) -> Diagnosis | None:
    """Say that the ranks take the same ratio longer than their peers for nearly everything; None where they do not."""
    kernels = _of_devices(of, accused)
    return None if kernels is None else _throughout(of, kernels, accused)


def _of_devices(of: Compared, accused: Collection[Position]) -> Kernels | None:
    """Return the kernels of devices, None for threads: there the host makes everything slower, and has other causes."""
    largest = of.largest
    if not of.job.on_device or CLASSES[largest.class_index] != "compute" or largest.kind == "intermittent":
        return None
    return kernels_of(of, accused)


def _throughout(
    of: Compared, kernels: Kernels, accused: Collection[Position], recorded: Job | None = None
) -> Diagnosis | None:
    """Say that the ranks take the same ratio longer than their peers for nearly everything.

    `ratio` is compute of the mean step ÷ what it takes peers; `least_ratio` and `most_ratio` are those of single
    kernels. What is in kernels that no test looks at by themselves counts as one more. Where all of the ranks and none
    of the peers have another model of device, by what is `recorded`, it is the model.
    """
    whole, counted = kernels.growth(), kernels.counted()
    if whole <= 0 or kernels.usual_ns.sum() <= 0:
        return None
    models = None if recorded is None else _models(of, accused, recorded)
    known = counted & kernels.named
    growth = kernels.longer_ns[counted] / kernels.usual_ns[counted]
    alike = (growth >= ALIKE[0] * whole) & (growth <= ALIKE[1] * whole)
    is_whole = np.count_nonzero(known) >= FEWEST_KERNELS
    is_whole &= kernels.usual_ns[counted][alike].sum() >= NEARLY_ALL * kernels.usual_ns.sum()
    if not is_whole and models is None:
        return None
    shown = (WholeDevice if models is None else DeviceModels)(
        ratio=1 + whole,
        kernels=int(np.count_nonzero(known)),
        peers=kernels.peers,
        least_ratio=1 + float(growth.min()) if len(growth) else None,
        most_ratio=1 + float(growth.max()) if len(growth) else None,
        shown_by=_LOCALIZE,
        ranks=of.ranks,
        about=models,
    )
    return Diagnosis("compute" if models is None else "device_model", None, (shown,))


_LOCALIZE: Final = ShownBy("localize")


def _models(of: Compared, accused: Collection[Position], recorded: Job) -> str | None:
    """Name the models of the ranks' devices and of their peers', where no model is on both sides; None else."""

    def models(places: Sequence[Position]) -> list[str] | None:
        known = [recorded.identity.get(rank) for rank in ranks_at(of.job.ranks, places)]
        told = [None if one is None else one.device.model for one in known]
        return None if None in told or not told else sorted({shown(one) for one in told if one is not None})

    mine, theirs = models(of.largest.positions), models(of.unaccused(accused))
    if mine is None or theirs is None or not set(mine).isdisjoint(theirs):
        return None
    return f"{', '.join(mine)}; peers' {', '.join(theirs)}"


def _one_family(of: Compared, kernels: Kernels) -> Diagnosis | None:
    """Say what the ranks are slow in where that is one family of kernels, and all others take what they take peers.

    That is no slow device. What depends on its data, and is slower in all of its kernels, has more to do; of other
    kernels, or of a single one, nobody knows why. But all that arithmetic bounds, or all that the device's memory does,
    is slower alone by what the device runs at.
    """
    lost = float(kernels.longer_ns.clip(min=0).sum())
    if lost <= 0:
        return None
    for part in _parts(kernels):
        alone = kernels.longer_ns[part.slow].sum() >= NEARLY_ALL * lost and kernels.rest_is_as_usual(
            part.slow, part.kin
        )
        if alone and (part.kind is OneKernel or kernels.alike(part.slow & kernels.counted())):
            shown = _beside_the_rest(kernels, part.slow, part.about, part.kind, of.ranks)
            return Diagnosis(part.cause, kernels.slowest(part.slow) if part.cause == "uneven_work" else None, (shown,))
    return None


@dataclass(frozen=True)
class _Part:
    """Kernels that may be slower alone; `kin` are others that the same property of a device would slow."""

    about: str
    slow: Bools
    kin: Bools | None
    cause: Cause = "compute"
    kind: type[OneFamily | OneKernel] = OneFamily


def _parts(kernels: Kernels) -> Iterator[_Part]:
    """Yield families, the slowest kernel by itself, then what a low clock slows, and what slow memory does."""
    arithmetic, copies = kernels.of(OF_ARITHMETIC), kernels.of(OF_COPIES)
    bound_by_memory = ~arithmetic & ~copies
    for family in (*OF_DATA, *OF_ARITHMETIC):
        slow, kin = kernels.of({family}), arithmetic if family in OF_ARITHMETIC else bound_by_memory
        yield _Part(family, slow, kin & ~slow, "uneven_work" if family in OF_DATA else "compute")
    if kernels.names:
        single = np.arange(len(kernels.families)) == int(kernels.longer_ns[kernels.named].argmax())
        kin = arithmetic if (arithmetic & single).any() else ~arithmetic
        yield _Part(kernels.slowest(single) or "", single, kin & ~single, kind=OneKernel)
    for about, slow in (("arithmetic", arithmetic), ("memory", bound_by_memory)):
        if np.count_nonzero(slow & kernels.named & kernels.counted()) >= FEWEST_OF_ONE_BOUND:
            yield _Part(about, slow, None)


def _slow_copies(of: Compared, kernels: Kernels) -> Diagnosis | None:
    """Say that the ranks' copies to and from their devices are slower by one ratio, and nothing else is."""
    directions = [kernels.of({family}) for family in OF_COPIES]
    slow = directions[0] | directions[1]
    lost, usual = float(kernels.longer_ns.clip(min=0).sum()), float(kernels.usual_ns.sum())
    if lost <= 0 or any(kernels.usual_ns[way].sum() < LEAST_COPIES * usual for way in directions):
        return None
    growth = kernels.growth(slow)
    alike = all(ALIKE[0] * growth <= kernels.growth(way) <= ALIKE[1] * growth for way in directions)
    if not (alike and kernels.rest_is_as_usual(slow)) or kernels.longer_ns[slow].sum() < NEARLY_ALL * lost:
        return None
    return Diagnosis("host_link", None, (_beside_the_rest(kernels, slow, "copies", OneFamily, of.ranks),))


def _beside_the_rest(
    kernels: Kernels, slow: Bools, about: str, kind: type[OneFamily | OneKernel], ranks: tuple[Rank, ...]
) -> Evidence:
    return kind(
        excess_us_per_step=float(kernels.longer_ns[slow].sum()) / 1e3,
        ratio=1 + kernels.growth(slow),
        others_ratio=1 + kernels.growth(~slow),
        others_share=float(kernels.takes_ns[~slow].sum() / kernels.takes_ns.sum()),
        shown_by=_LOCALIZE,
        ranks=ranks,
        about=about,
    )
