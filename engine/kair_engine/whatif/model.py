"""Defines what a model knows about a recording, whatever its kind: all that what-if analyses ask.

Remembers what was replayed, so that one more fix costs one replay.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from enum import Enum
from threading import Lock
from typing import Final, Literal

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.causes import FixKind, RemedyName
from kair_engine.errors import UsageError
from kair_engine.frozen import dataclass
from kair_engine.results.whatif import Fix, HostStops, Remedy
from kair_engine.trace.model import Job, KairWarning
from kair_engine.trace.operations import Operations
from kair_engine.whatif.prices import OfParts, Symptoms

GC_STEPS: Final = 500
"""Planned garbage collection: all ranks collect once in so many steps, as in the published experiments [W]."""
WORTH = 0.01
"""Of the step: what a remedy must save to be named."""
TimelineTitle = Literal["recorded", "ideal"]
TITLES: Final[tuple[TimelineTitle, ...]] = ("recorded", "ideal")
"""The timelines that are drawn of a job, in this order."""


class Baseline(Enum):
    """The job without any fix."""

    DELAYED = "delayed"
    """As recorded, with all delays: what was measured, as far as the model holds."""
    RECORDED = "recorded"
    """As recorded, as all else is compared with it: the published model leaves launch delays out [W]."""
    UNDELAYED = "undelayed"
    """As recorded, without the delays that no recorded operation explains."""
    IDEAL = "ideal"
    """Every operation takes no longer than its peers'."""


class Undisturbed(Enum):
    """As recorded, but for what no peer shows. Of profiler recordings alone; each is asked for by itself."""

    THREADS_RUN = "threads_run"
    """Without stops of the program's own threads."""
    USUAL = "usual"
    """Nothing except kernels takes longer than it usually does itself."""
    ENOUGH_CORES = "enough_cores"
    """Without what the kernel measured that threads had no core, those that communicate among them."""
    UNQUEUED = "unqueued"
    """What is launched begins when its device has nothing else of its rank to do."""
    ALONE_ON_DEVICE = "alone_on_device"
    """The same, and kernels take no longer than they usually do."""


@dataclass(frozen=True)
class Parts:
    """What the time of steps is made of: arrays of one length. A call of an operation can have several parts."""

    step: Ints
    """The step's number."""
    at: Ints
    """The place among the parts of its step."""
    rank: Ints
    """The rank's number."""
    operator: Ints
    """Whose time it is, a code; NONE at the end of a step."""
    kind: Ints
    """Index into FIX_KINDS, or NONE: what no fix changes."""
    which: Ints
    """(2 × parts): the phase, and which call of the operator in it; equal for the same call of all steps."""
    delay: Bools
    """Whether it is the time before the operation, and not its own."""
    transfer: Ints
    """Equal for members of one communication, NONE of all else."""
    value_ns: Floats
    operators: Mapping[int, str]


class Transplanted:
    """Some parts are as long as in another recording, or in other steps; each is a separate question."""

    def __init__(
        self, layers: Sequence[Mapping[int, tuple[Ints, Floats]]], undelayed: AbstractSet[int] | None = None
    ) -> None:
        """Per layer: step → (places among the parts of the step, by how much they are longer, ns).

        Where steps are `undelayed`, a model that leaves delays out replays them: in these steps no longer than the same
        delay is in the other ones.
        """
        self.layers, self.undelayed = layers, undelayed

    def of_step(self, step: int) -> Iterator[tuple[Ints, Floats]]:
        """Return what is added to some parts of one step."""
        return (layer[step] for layer in self.layers if step in layer)


@dataclass(frozen=True)
class IdealOfAll(Fix):
    """A fix whose ideal is that of all ranks, its own among them: where what a part alone costs is asked for."""


Counterfactual = Baseline | Undisturbed | Transplanted | tuple[Fix, ...]
"""What is supposed of the job: a baseline, what would disturb no rank, what another recording of it has, or fixes that
are made together."""


@dataclass(frozen=True)
class ReplayedSteps:
    """The times of those steps that can be replayed, ns."""

    steps: tuple[int, ...]
    measured: Floats
    """(steps)."""
    times: Floats
    """(counterfactuals × steps), in the order in which they were asked for."""


Foreseen = Callable[[HostStops | None], Sequence[Counterfactual]]
"""What will be asked next, given how the threads of the first steps stood still. To be wrong costs a replay."""


@dataclass(frozen=True)
class MovedStep:
    """Where the operations of one step would lie with fixes made: ns on each rank's own clock, as recorded."""

    ops: Operations
    """The step as recorded, whose rows and ranks the arrays are of."""
    start_ns: Ints
    end_ns: Ints
    begin_ns: Ints
    """Per rank, of its step."""
    length_ns: Ints


@dataclass(frozen=True)
class PathPiece:
    """A stretch of a critical path: what a rank did in it, and others had to wait for."""

    rank: int
    name: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True)
class DrawnStep:
    """A step in one of the timelines; times in ns since the first step's begin, on one clock."""

    title: TimelineTitle
    ops: Operations
    rows: Ints
    """The operations that are drawn; the arrays below are of them."""
    start_ns: Ints
    end_ns: Ints
    on_path: Bools
    """Whether its own time is part of the critical path."""
    path: tuple[PathPiece, ...]
    """Without gaps; empty where the step waits for itself in a circle."""
    microbatch: Ints | None = None
    """NONE where the recording does not show it."""


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Who costs what."""

    replayed: ReplayedSteps
    """Of the baselines in their order, then of the fixes that were asked for with them."""
    parts: OfParts[Floats]
    """Step times (steps), ns, where only the one part is as recorded and all else ideal; none of a sort that was not
    worked out."""
    by_rank_approximate: Mapping[int, float] = field(default_factory=dict)
    """S of ranks as the published model has it; empty where the model has none."""
    heatmap: Floats
    """(stages × dp ranks), or all ranks in one row: every worker's S, where that was not worked out more than that."""
    slowest: tuple[int, ...]
    """The ranks that M_W takes away, the costliest first."""
    excess_ns: Mapping[int, float] = field(default_factory=dict)
    """Per rank, of the mean step, by how much its operations exceed their peers' ideal in sum: no more is saved without
    that."""
    warnings: tuple[KairWarning, ...] = ()
    """What the figures do not say."""
    notices_of_noise: tuple[KairWarning, ...] = ()
    """The same where nobody stands out."""


@dataclass(frozen=True)
class Removed:
    """What each part costs: the job as recorded, but for this part, which is like its peers."""

    parts: OfParts[Floats]
    """Step times (steps), ns, of the fix of each part."""
    at_most_ns: Mapping[int, float]
    """Of ranks that were not replayed, because they are too many: the mean step is shorter by no more."""


class Model(ABC):
    """A job made ready for replay. Questions may come from several threads.

    What a recording does not show is empty, or None.
    """

    kinds: tuple[FixKind, ...]
    """The kinds of time that it distinguishes."""
    ideal_is_published = False
    """Whether its ideal is the published one, a mean that has the slow ranks in it, and not the peers'."""
    remedy_names: tuple[RemedyName, ...] = ()
    """The remedies that it can replay."""
    _keep = True
    """Whether steps are made ready once."""
    same: tuple[Baseline, Baseline]
    """A baseline that is another one, since its replays have all delays or none; and that other one."""

    def __init__(self, job: Job, steps: tuple[int, ...]) -> None:
        """Take `steps`, those that an answer is about."""
        self.job, self.steps = job, steps
        self._lock = Lock()
        self._known: dict[Counterfactual, Floats] = {}
        self._replayed_steps: tuple[tuple[int, ...], Floats] = ((), np.zeros(0))

    def replay(self, counterfactuals: Sequence[Counterfactual], foreseen: Foreseen | None = None) -> ReplayedSteps:
        """Return step times; each counterfactual is replayed once, however often it is asked for.

        Where steps are made ready again for every question, what is `foreseen` is replayed along, and remembered.
        Raises InputError where no step can be replayed.
        """
        same, other = self.same
        asked = [other if one is same else one for one in counterfactuals]
        with self._lock:
            missing = [one for one in dict.fromkeys(asked) if one not in self._known]
            if missing:
                found = self._replayed(missing, foreseen)
                self._replayed_steps = found.steps, found.measured
                self._known.update(zip(missing, found.times, strict=True))
            return ReplayedSteps(*self._replayed_steps, np.stack([self._known[one] for one in asked]))

    @abstractmethod
    def _replayed(self, missing: list[Counterfactual], foreseen: Foreseen | None) -> ReplayedSteps:
        """Replay what is not known yet; to the list may be appended what is replayed besides."""

    @property
    @abstractmethod
    def last_stage(self) -> tuple[int, ...]:
        """Return the ranks of the last of several pipeline stages."""

    @property
    def stays_ready(self) -> bool:
        """Whether several questions cost no more than one that asks for all, as steps are made ready once."""
        return self._keep

    def fits_memory(self) -> bool:
        """Whether a replay takes no more memory than an analysis of the same steps does anyway."""
        return True

    @abstractmethod
    def require(self, fix: Fix) -> None:
        """Raise UsageError, with what there is instead, where no operation of the chosen steps fits the fix."""

    @abstractmethod
    def parts(self) -> Iterator[Parts]:
        """Return what all steps are made of, some steps at a time."""

    @abstractmethod
    def attribute(self, fixes: Sequence[tuple[Fix, ...]]) -> Attribution:
        """Who costs what, and the step times with fixes made. Raises InputError where no step can be replayed."""

    @abstractmethod
    def removed(self, found: Attribution, next_asked: Sequence[Counterfactual] = ()) -> Removed:
        """Return what the fix of each part saves, as `kair whatif --fix` prices it.

        What is asked next may be replayed along, where steps are made ready for each question.
        """

    def symptoms(self, replayed: ReplayedSteps) -> Symptoms:  # noqa: ARG002
        """Return what speaks for a cause; `replayed` are the baselines."""
        return Symptoms()

    def price_remedies(self, names: Sequence[RemedyName]) -> tuple[Remedy, ...]:
        """Price published remedies by name. Raises UsageError where the recording cannot carry one."""
        if names:
            raise UsageError("published remedies need pipeline stages and operation types, which the recording lacks")
        return ()

    @abstractmethod
    def waits_if_ideal(self) -> Mapping[int, float]:
        """Per rank, how long it waits for others in the mean ideal step, ns; of those ranks that are replayed.

        Raises InputError where no step can be replayed.
        """

    def host_stops(self) -> HostStops | None:
        """Moments at which threads stood still; None where none did, or threads are not recorded."""
        return None

    def launch_delays(self, replayed: ReplayedSteps) -> OfParts[Floats] | None:  # noqa: ARG002
        """Step times (steps), ns, with the launch delays of one part alone; None where they cost next to nothing."""
        return None

    def remedies(self, recorded: Floats) -> tuple[Remedy, ...]:  # noqa: ARG002
        """Return what would help where no rank is at fault, the largest saving first; `recorded` is that baseline
        (steps).
        """
        return ()

    def planned_gc(self, recorded: Floats) -> tuple[Remedy, ...]:
        """Price garbage collection at one common step of all ranks; none where it saves too little to be named.

        Saved are all recorded collections, less the longest of them once in `GC_STEPS` steps [W].
        """
        now_ns = float(recorded.mean())
        without_ns, longest_ns = self.without_gc(WORTH * now_ns)
        after_ns = without_ns + longest_ns / GC_STEPS
        if now_ns - after_ns <= WORTH * now_ns:
            return ()
        saved_us = (now_ns - after_ns) / 1e3
        return (Remedy("planned_gc", after_ns / 1e3, saved_us, collection_us=longest_ns / 1e3, every_steps=GC_STEPS),)

    @abstractmethod
    def without_gc(self, worth_ns: float) -> tuple[float, float]:
        """Return (the mean step without garbage collections, the longest of them), ns; infinite where they take too
        little.
        """

    @abstractmethod
    def warnings_of(self, replayed: ReplayedSteps) -> tuple[KairWarning, ...]:
        """Return what of the recording the replay could not take as it should, and how far it is off the recording."""

    @abstractmethod
    def timelines(self) -> Iterator[DrawnStep]:
        """Lay out every step as recorded, and ideal."""

    @abstractmethod
    def moved(self, fixes: Sequence[Fix]) -> MovedStep:
        """Where the operations of the first step would lie with all of `fixes` made, in the step by itself.

        Raises InputError where that step cannot be replayed by itself.
        """
