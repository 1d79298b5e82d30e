"""Kinds of evidence: a class each, with its figures, its description and its sentence.

The engine makes them, kept answers and JSON hold their names and figures, `kair schema` prints what they mean, and
`kair_tui/render/sentences.py` fills their templates. A new kind is a class here. The first lines of a class's docstring
are its description, to which `description` adds the names of the figures. Units are in the figures' names, shares are
of 1, and counts that are whole stay so, so that what was kept reads as it was.

A template's fields are figures and properties, each with the name of a format (`{excess_us_per_step:duration}`), or
with two words, for one and for several (`{ranks:?spends|spend}`). Where the words depend on more than that, `wording`
chooses them.
"""

import signal
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from kair_engine.causes import CAUSES
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.blame import STEP_BEGIN, STEP_END, RootCause
from kair_engine.results.kinds import Kind, Number
from kair_engine.results.whatif import Fix

Analysis = Literal["localize", "pinpoint", "blame", "whatif"]
_CAUSES_SHOWN: Final = 2
"""What made a rank late fills no paragraph: the command next to the sentence shows the rest."""
_QUEUED_US: Final = 100
"""Any network queues for less than this."""
TOGETHER: Final = 1.5
"""Ranks stop together if stops independent across ranks would cover this many times more of the host's time."""
KERNEL_FAMILIES: Final = {
    "attention": "attention kernels",
    "experts": "kernels of experts",
    "lookups": "kernels that look up rows",
    "selections": "kernels that sort or select",
    "matrix_products": "matrix products",
    "copies": "copies between host and device",
    "arithmetic": "compute-bound kernels",
    "memory": "memory-bound kernels",
}


@dataclass(frozen=True)
class ShownBy:
    """The analysis whose answer shows the figures, and what it has to be asked about."""

    analysis: Analysis
    """The command whose answer shows the figures."""
    rank: Rank | None = None
    """What `--rank` has to be; null where it takes none."""
    fixes: tuple[Fix, ...] = ()
    """Of `whatif`, made together; none for its answer without any."""


class Evidence(Kind, kw_only=True):
    """One thing that speaks for a finding."""

    kind: "EvidenceKind" = field(init=False)
    """What the figures are."""
    figures: dict[str, Number] = field(init=False, hash=False)
    """Units are in their names; shares are of 1."""
    shown_by: ShownBy | None = None
    """None where there is no figure to look up."""
    ranks: tuple[Rank, ...] = ()
    """Who it is about; empty where that is nobody."""
    about: str | None = None
    """The cause, operator, process group, pipeline edge, stage, two hosts or file that it is of."""
    root_causes: tuple[RootCause, ...] = ()
    """What made the ranks late, of the kind `made_late`."""
    sentence: str = ""
    """The figures in words, for people."""
    command: str | None = None
    """Shows the same figures; null if nothing can be looked up."""

    @property
    def spends_on(self) -> str:
        """Return what the cause that it is about spends time on."""
        return CAUSES[self.about or "unknown"].spends_on.format(their="its" if len(self.ranks) == 1 else "their")


_COST: Final = "{excess_us_per_step:duration} a step ({share_of_step:percent})"


class Excess(Evidence):
    """More of its self time than the role's median, or than the others of the role, where half of it is slow.

    About: class of time.
    """

    excess_us_per_step: float
    share_of_step: float
    others_of_role: Number | None = None

    def wording(self) -> str:
        """Compare it with the role's median, or with so many others."""
        others = "the other {others_of_role:some rank} of {ranks:its} role"
        than = others if self.others_of_role else "{ranks:its} role's median"
        if len(self.ranks) == 1:
            return f"{{ranks:who}} spends {_COST} more {{spends_on}} than {than}"
        return f"{{ranks:who}} each spend {_COST} more {{spends_on}} than {than}, on average"


class SlowOperator(Evidence):
    """More time in one operator than the role's median. About: operator."""

    template = f"{{ranks:who}} {{ranks:?spends|spend}} {_COST} more in {{about:name}} than {{ranks:its}} role's median"
    excess_us_per_step: float
    share_of_step: float


class LargeDelays(Evidence):
    """How many of all large delays fell on it. About: class of time."""

    template = (
        "{ranks:who} had {delays:count} of the {of_all:count} large delays in {steps:plural step}, spent {spends_on}"
    )
    delays: Number
    of_all: Number
    steps: Number


class Periodic(Evidence):
    """Its large delays come every so many steps."""

    template = "{ranks:who}'s {events:count} large delays come at regular intervals, every {every:count} steps"
    every: Number
    events: Number


class HostPauses(Evidence):
    """How many of all host pauses fell on it, in one or two steps. About: class of time."""

    template = (
        "{ranks:who} had {delays:count} of the {of_all:count} host pauses between collectives in its role in "
        "{steps:plural step}, spent {spends_on}"
    )
    delays: Number
    of_all: Number
    steps: Number


class CameLast(Evidence):
    """Who waited for it."""

    template = (
        "{ranks:who} came last to {arrived_last:count} of {collectives:plural collective}; peers waited "
        "{waited_us:duration} in total for {ranks:them}, {share_of_waiting:percent} of all waiting"
    )
    arrived_last: Number
    collectives: Number
    waited_us: float
    share_of_waiting: float


class MadeLate(Evidence):
    """The root causes of its lateness."""

    blamed_us: float

    def wording(self) -> str:
        """List the first causes; the answer of blame has the others."""
        listed = "; ".join(map(self._part, range(len(self.root_causes[:_CAUSES_SHOWN]))))
        others = "; and smaller causes" if len(self.root_causes) > _CAUSES_SHOWN else ""
        return f"what made {{ranks:them}} late: {listed}{others}"

    def _part(self, number: int) -> str:
        cause, at = self.root_causes[number], f"root_causes[{number}]"
        name = {STEP_BEGIN: "already late when the step began", STEP_END: "idle at the end of the step before"}.get(
            cause.operator or "", f"{'idle before ' if cause.is_edge else ''}{{{at}.operator:name}}"
        )
        where = "" if len(self.ranks) == 1 else f" on rank {cause.rank}"
        return f"{name}{where} ({{{at}.blamed_us:duration}} over {{{at}.synchronisations:plural collective}})"


class OperatorBehind(Evidence):
    """The operator that cost most, where blame found none. About: operator."""

    template = "the operator that cost most: {about:name}"


class SlowLink(Evidence):
    """A link against its siblings. About: link."""

    self_us: float
    expected_us: float
    siblings: Number
    share_of_step: float

    def wording(self) -> str:
        """Say whose time it is: of a process group that of its collectives."""
        what = "collectives of {about} take" if str(self.about).startswith("process group") else "{about} takes"
        return (
            f"{what} {{self_us:duration}} a step without waiting, {{share_of_step:percent}} of the step more than the "
            "{siblings:plural sibling} (median {expected_us:duration})"
        )


class LinksInCommon(Evidence):
    """Slow links that share these ranks."""

    template = "{links:count} slow links have {ranks:who} in common"
    links: Number


class GroupNotRank(Evidence):
    """Why a process group is named, and no rank in it."""

    template = "all members of a ring see the same duration, so this names the group but no rank in it"


class UnevenStages(Evidence):
    """A stage against the mean of the stages. About: the slowest stage."""

    template = (
        "{about} computes {self_us:duration} a step, {times:.2f} times the mean of the {stages:count} stages "
        "({mean_us:duration}): {share_of_step:percent} of the step more"
    )
    self_us: float
    mean_us: float
    stages: Number
    share_of_step: float

    @property
    def times(self) -> float:
        """Return how many times the mean of the stages it takes."""
        return self.self_us / self.mean_us


class UnevenBatches(Evidence):
    """Forward and backward vary together."""

    template = (
        "within a rank, forward and backward time vary together over the steps (correlation {correlation:.2f}, median "
        "of ranks; forward varies by {variation:percent}): batches of different length"
    )
    correlation: float
    variation: float


class LongestBatch(Evidence):
    """What waiting for it costs."""

    template = "the longest batch of a step takes {share_of_step:percent} of the step longer than the usual one"
    share_of_step: float


class DelaysOnChangingRanks(Evidence):
    """Delays that no rank has more often than chance. About: cause."""

    template = (
        "{delays:plural large delay} on {ranks_:plural rank} in {hit_steps:count} of {steps:plural step}, spent "
        "{their_time}, on no rank more often than by chance"
    )
    delays: Number
    ranks_: Number
    hit_steps: Number
    steps: Number

    @property
    def their_time(self) -> str:
        """Return what the cause spends time on, on ranks that are never one alone."""
        return CAUSES[self.about or "unknown"].spends_on.format(their="their")


class LongestDelays(Evidence):
    """What the longest of each step costs."""

    template = "the longest of each step costs {share_of_step:percent} of the step"
    share_of_step: float


class UnevenPositions(Evidence):
    """What ranks at each position of a process group spend on an operator, a family of kernels, or all their own work.

    About: that; process group. Figures: one for each position, in µs per step; share_of_step.
    """

    share_of_step: float

    @property
    def what(self) -> str:
        """Return the operator or family of kernels; empty where it is all of their own work."""
        return str(self.about).rpartition("; ")[0]

    @property
    def group(self) -> str:
        """Return the process group; empty where it has no name."""
        return str(self.about).rpartition("; ")[2]

    @property
    def spent(self) -> list[float]:
        """Return what each position spends, the first one first."""
        return [us for name, us in self.figures.items() if name != "share_of_step"]

    def wording(self) -> str:
        """Name what is computed, and where."""
        takes = "what ranks compute takes"
        if self.what:
            takes = "{what:kernels} " + ("take" if self.what in KERNEL_FAMILIES else "takes")
        of_group = " of {group}" if self.group else ""
        positions = f"positions 0 to {len(self.spent) - 1}{of_group}"
        return f"{takes} {{spent:durations}} a step on {positions}, in every step"


class LongestChanges(Evidence):
    """Another rank has most work each time."""

    template = (
        "in {steps:plural step}, {ranks_:plural rank} took turns to have most work; the longest costs "
        "{share_of_step:percent} of the step"
    )
    ranks_: Number
    steps: Number
    of_steps: Number
    share_of_step: float


class AtStepEnd(Evidence):
    """Idle after a step's last operation, until it ends."""

    template = (
        "{ranks:who} idles for {after_us_per_step:duration} a step after its last operation, before the step ends "
        "(peers {peers_us:duration})"
    )
    after_us_per_step: float
    peers_us: float


class AllPause(Evidence):
    """All ranks pause in the same steps."""

    delays: Number
    every: Number
    of_steps: Number
    share_of_step: float

    def wording(self) -> str:
        """Say every how many steps, where they are equally far apart."""
        when = ", every {every:plural step}" if int(self.every) else ""
        paused = "all ranks pause together in {delays:count} of {of_steps:plural step}"
        return f"{paused}{when}: {{share_of_step:percent}} of the step on average"


class HostStops(Evidence):
    """Threads stand still in the middle of operations.

    Together is 1 where ranks do so at moments of their own, more where they do so together.
    """

    of_rank: ClassVar[str] = (
        "{per_step:decimal} times a step (median {median_us:duration}, longest "
        "{longest_us:duration}), {share_of_step:percent} of the step"
    )
    per_step: float
    median_us: float
    longest_us: float
    share_of_step: float
    slowest_rank_us: float
    together: float

    @classmethod
    def of_ranks(cls, together: float) -> str:
        """Return the template of how often and how long, and whether ranks stand still together."""
        when = "ranks stop at different moments, as when cores are shared"
        if together > TOGETHER:
            when = "ranks of a host stop together, as under one quota"
        return f"{cls.of_rank}; the worst rank loses {{slowest_rank_us:duration}}; {when}"

    def wording(self) -> str:
        """Say it of the mean rank."""
        return f"an average rank's threads stop {self.of_ranks(self.together)}"


class Ticks(Evidence):
    """Operations end with the scheduler's ticks: their threads wait for others that have no core.

    What is as long as a tick is so much of the mean rank's step.
    """

    waited: ClassVar[str] = (
        "whatever they compute, operations end at the scheduler's ticks; stretches as long as a tick "
        "({tick_us:duration}) or longer take {share_of_step:percent} of an average rank's step"
    )
    template = f"threads wait for others that have no core: {waited}"
    tick_us: float
    share_of_step: float


_PEERS_FOR: Final = "peers for {self:range of peers}"


def _looked_at(hit_steps: Number | None) -> str:
    if hit_steps is None:
        return "a step"
    return "each of these {hit_steps:plural step}" if hit_steps > 1 else "this step"


class NoCore(Evidence):
    """Measured by the kernel: how long threads that train were ready and had no core.

    With a GPU, of all ranks: or those that communicate, whichever lacked one for longer. Of the mean rank, the least
    and the most; or of these ranks next to their peers, in the hit_steps steps of an intermittent finding. Figures: of
    all ranks ready_us_per_step, step_us, least_us, most_us; of some ready_us_per_step, peers_least_us, peers_most_us,
    perhaps hit_steps.
    """

    of_all: ClassVar[str] = (
        "an average rank was ready but had no core for {ready_us_per_step:duration} of each step of {step_us:duration} "
        "({least_us:duration} to {most_us:duration})"
    )
    ready_us_per_step: float
    step_us: float | None = None
    least_us: float | None = None
    most_us: float | None = None
    peers_least_us: float | None = None
    peers_most_us: float | None = None
    hit_steps: Number | None = None

    def wording(self) -> str:
        """Say it of all ranks, or of some next to their peers."""
        if not self.ranks:
            return f"measured by the kernel: {self.of_all}"
        had_none = "{ranks:who} {ranks:?was|were each} ready but had no core for {ready_us_per_step:duration} of"
        return f"measured by the kernel: {had_none} {_looked_at(self.hit_steps)}, {_PEERS_FOR}"


class _Stopped(Evidence):
    """How often something stopped the mean rank's process; or theirs, next to their median peer's."""

    what: ClassVar[str]
    per_step: float
    peers_per_step: float | None = None

    @classmethod
    def of_all(cls) -> str:
        """Return the template of the mean rank."""
        return f"{cls.what} stopped an average rank's process {{per_step:decimal}} times a step"

    def wording(self) -> str:
        """Say it of all ranks, or of some next to their peers."""
        if self.peers_per_step is None:
            return self.of_all()
        peers = "{peers_per_step:significant} times" if self.peers_per_step else "never"
        process = "the process of {ranks:who} {per_step:significant} times a step"
        return f"{self.what} stopped {process}, {{ranks:its}} median peer's {peers}"


class Throttled(_Stopped):
    """How often a quota of CPU time stopped the mean rank's process; or theirs, next to their median peer's."""

    what = "a quota of CPU time"


class Halted(_Stopped):
    """How often a signal (SIGSTOP) stopped the mean rank's process; or theirs, next to their median peer's."""

    what = "signals (SIGSTOP)"


class LowerPriority(Evidence):
    """Its nice level, next to its median peer's."""

    template = (
        "{ranks:who} {ranks:?runs|run} at nice {nice:count}, peers at {peers_nice:count}: others that want the core go "
        "first"
    )
    nice: Number
    peers_nice: Number


class SmallerQuota(Evidence):
    """Its quota of CPU time, in cores; its median peer's, if that has one."""

    cores: Number
    peers_cores: Number | None = None

    def wording(self) -> str:
        """Say what the median peer has, if that has a quota."""
        peers = "peers none" if self.peers_cores is None else "peers of {peers_cores:significant}"
        return f"{{ranks:who}} {{ranks:?has|have}} a quota of {{cores:significant}} cores, {peers}"


class FewerCores(Evidence):
    """How many cores it may run on, next to its median peer."""

    template = "{ranks:who} may run on {cores:plural core}, peers on {peers_cores:count}"
    cores: Number
    peers_cores: Number


class Crowded(Evidence):
    """These ranks of one host may only run on the same cores, fewer than they are."""

    ranks_: Number
    cores: Number

    def wording(self) -> str:
        """Count the cores, where it is not one."""
        where = "core" if int(self.cores) == 1 else "{cores:plural core}, fewer than they are"
        return f"{{ranks:who}} may only run on the same {where}"


class OwnThreads(Evidence):
    """Ranks lack cores mostly for threads of their own.

    CPU time of the mean rank's threads besides the training one; how much of its cores the ranks of the fullest host
    use.
    """

    template = (
        "ranks lack cores for their helper threads (OpenMP's, say), which compute {helpers_us_per_step:duration} a "
        "step on an average rank; {ranks_:plural rank} of a host use {used_share:percent} of the {cores:plural core} "
        "that they may run on; fewer threads would have the same work to do, and save less"
    )
    helpers_us_per_step: float
    used_share: float
    cores: Number
    ranks_: Number


class _OnTheWay(Evidence):
    """What the kernel measured of transfers between hosts."""

    @property
    def on_the_way(self) -> str:
        """Return the template of what else happens to transfers."""
        figures = self.figures
        queues = "; what is sent waits {queued_us:duration} in queues"
        again = "; {retransmitted_per_step:significant} segments a step are sent again"
        shown = queues if figures.get("queued_us", 0.0) >= _QUEUED_US else ""
        return shown + (again if figures["retransmitted_per_step"] >= 1 else "")


class SlowNetwork(_OnTheWay):
    """Measured by the kernel: what its host sends to other hosts (or receives, where receives is 1), and how fast.

    Next to what others send; how long it takes in a step; TCP segments that are sent again; for how long it waits in
    queues on its way, where that is known.
    """

    bytes_per_step: float
    bytes_per_s: float
    usual_bytes_per_s: float
    delivering_us_per_step: float
    retransmitted_per_step: float
    receives: Number
    queued_us: float | None = None

    def wording(self) -> str:
        """Say which way it is slow, and what else happens to transfers."""
        verb, way = ("{ranks:?receives|receive}", "from") if self.receives else ("{ranks:?sends|send}", "to")
        return (
            f"measured by the kernel: {{ranks:who}} {verb} {{bytes_per_step:size}} a step {way} other hosts at "
            "{bytes_per_s:rate}, which takes {delivering_us_per_step:duration}; other transfers go at "
            f"{{usual_bytes_per_s:rate}}{self.on_the_way}"
        )


class Network(_OnTheWay):
    """Measured by the kernel, where all hosts are as slow: what a host sends another whose transfers take longest.

    How fast that is delivered and how long it takes in a step; the fastest transfers; segments that are sent again; for
    how long what is sent waits in queues, where that is known. About: both hosts.
    """

    bytes_per_step: float
    bytes_per_s: float
    fastest_bytes_per_s: float
    delivering_us_per_step: float
    retransmitted_per_step: float
    queued_us: float | None = None

    def wording(self) -> str:
        """Add what else happens to transfers."""
        return (
            "measured by the kernel: from {about} go {bytes_per_step:size} a step at {bytes_per_s:rate}, which takes "
            "{delivering_us_per_step:duration}; no transfers between hosts go faster than {fastest_bytes_per_s:rate}"
            f"{self.on_the_way}"
        )


class ComputesMore(Evidence):
    """Measured by the kernel: how long its thread computed, next to its peers'.

    In the hit_steps steps of an intermittent finding.
    """

    computed_us_per_step: float
    peers_least_us: float
    peers_most_us: float
    hit_steps: Number | None = None

    def wording(self) -> str:
        """Say in which steps."""
        computed = "{ranks:who} {ranks:?computes|compute} for {computed_us_per_step:duration} of"
        return f"measured by the kernel: {computed} {_looked_at(self.hit_steps)}, {_PEERS_FOR}"


class Asleep(Evidence):
    """Measured by the kernel: how long its thread neither computed nor was ready to, though it waited for nobody.

    Next to its peers'.
    """

    template = (
        "measured by the kernel: {ranks:who} {ranks:?is|are} asleep for {asleep_us_per_step:duration} of a step, "
        f"waiting neither for a core nor for other ranks; {_PEERS_FOR}"
    )
    asleep_us_per_step: float
    peers_least_us: float
    peers_most_us: float


class MoreCalls(Evidence):
    """It runs this oftener than its peers. About: operator."""

    template = (
        "{ranks:who} {ranks:?calls|call} {about:name} {calls:significant} times a step, peers "
        "{usual_calls:significant} times: {excess_us_per_step:duration} a step more"
    )
    calls: Number
    usual_calls: Number
    excess_us_per_step: float


class LaunchesMore(Evidence):
    """It runs an operator that launches work oftener than its peers, and how much longer its device idles for it.

    About: operator.
    """

    template = (
        "{ranks:who} {ranks:?calls|call} {about:name} {calls:significant} times a step, peers "
        "{usual_calls:significant} times: the device idles {excess_us_per_step:duration} a step more before what that "
        "launches"
    )
    calls: Number
    usual_calls: Number
    excess_us_per_step: float


class SlowerLaunches(Evidence):
    """How long its device idles between launches that follow one another, next to its peers'."""

    template = (
        "the device of {ranks:who} idles {idle_us_per_step:duration} a step between launches that follow one another, "
        "that of peers {peers_us_per_step:duration}"
    )
    idle_us_per_step: float
    peers_us_per_step: float


class InCalls(Evidence):
    """How long its device idles while its host compiles or allocates memory, next to its peers'.

    Without a device, how long its thread does. About: cause.
    """

    idle_us_per_step: float
    peers_us_per_step: float | None = None

    def wording(self) -> str:
        """Say it of the median rank, or of some next to their peers."""
        if self.peers_us_per_step is None:
            return "the median rank's device idles {idle_us_per_step:duration} a step while its host is {spends_on}"
        hosts = "{ranks:?its host is|their hosts are} {spends_on}, peers {peers_us_per_step:duration}"
        return f"{{ranks:who}} {{ranks:?loses|lose}} {{idle_us_per_step:duration}} a step while {hosts}"


class UnmarkedInput(Evidence):
    """How long it is idle in the median step where a batch is fetched, next to its peers."""

    template = (
        "{ranks:who} {ranks:?spends|spend} {idle_us_per_step:duration} a step before the model's first operator, peers "
        "{peers_us_per_step:duration}: where a loop fetches its batch, though nothing marks that"
    )
    idle_us_per_step: float
    peers_us_per_step: float


class LongerBatches(Evidence):
    """Its passes take longer than its peers', its optimizer does not."""

    template = (
        "{ranks:who} {ranks:?takes|take} {passes_share:percent} longer than peers in forward and backward passes, "
        "{optimizer_share:percent} in the optimizer: longer batches rather than a slower device (recorded shapes would "
        "show it)"
    )
    passes_share: float
    optimizer_share: float


class LargerInputs(Evidence):
    """By how much more it is given, and what that costs.

    The dimension that differs most (axis of its tensor, from 0), averaged over calls, its peers', and what a unit of it
    takes (of rows: a token, a sample). About: operator. Figures: larger_share, excess_us_per_step; per_call,
    usual_per_call, least_per_call, most_per_call, us_per_unit, usual_us_per_unit, tensor, axis.
    """

    larger_share: float
    excess_us_per_step: float
    per_call: float | None = None
    usual_per_call: float | None = None
    least_per_call: float | None = None
    most_per_call: float | None = None
    us_per_unit: float | None = None
    usual_us_per_unit: float | None = None
    tensor: Number | None = None
    axis: Number | None = None

    def wording(self) -> str:
        """Say what is more: rows of a matrix are tokens, samples, patches."""
        longer = "that takes {ranks:them} {excess_us_per_step:duration} a step longer"
        if self.per_call is None or self.axis is None:
            gives = "{ranks:who} {ranks:?gives|give} {about:name} {larger_share:percent} more than peers do"
            return f"{gives}: {longer}"
        what, unit = "rows", "row"
        if round(self.axis):
            what, unit = "along dimension {axis:rounded} of its tensor {tensor:rounded}", "unit"
        return (
            f"{{ranks:who}} {{ranks:?gives|give}} {{about:name}} {{per_call:rounded}} {what} a call, peers "
            "{usual_per_call:rounded}{self:spread}: {larger_share:percent} more, at {self:per unit} a "
            f"{unit}; {longer}"
        )


class LargerBatch(Evidence):
    """What it gives its model in a step, and its median peer; by what share that is more."""

    template = (
        "{ranks:who} {ranks:?gives|give} {ranks:?its model|their models} {given_bytes:size} in a step, peers "
        "{usual_given_bytes:size}: {larger_share:percent} more to compute with"
    )
    given_bytes: float
    usual_given_bytes: float
    larger_share: float


class SampleTime(Evidence):
    """How many samples the job gives it in a step, and its median peer; what one takes in the median step."""

    template = (
        "{ranks:who} {ranks:?takes|take} {us_per_sample:duration} a sample, peers {usual_us_per_sample:duration}: the "
        "job gives {ranks:them} {samples:g} a step, peers {usual_samples:g}"
    )
    samples: Number
    usual_samples: Number
    us_per_sample: float
    usual_us_per_sample: float


class SameInputs(Evidence):
    """What it spends longer on inputs as large as its peers'."""

    template = (
        "{ranks:who} {ranks:?takes|take} {excess_us_per_step:duration} a step longer on inputs no larger than "
        "{ranks:its} peers': this is not extra work"
    )
    excess_us_per_step: float


class _AsLong(Evidence):
    """How many times as long as their peers ranks compute, whatever they compute."""

    as_long: ClassVar[str] = "{ranks:?computes|compute} {ratio:ratio} as long as {ranks:its} {peers:some peer}"
    ratio: float
    kernels: Number
    peers: Number
    least_ratio: float | None = None
    most_ratio: float | None = None


class WholeDevice(_AsLong):
    """It computes longer than its peers by the same ratio in nearly all kernels.

    Of the mean step, and of the kernels with least and most of it. Figures: ratio, least_ratio, most_ratio, kernels
    (how many show it), peers (of its role).
    """

    throughout: ClassVar[str] = (
        f"{{ranks:who}} {_AsLong.as_long}, in every kernel: the {{ranks:?device|devices}}, not the code"
    )
    template = (
        f"{throughout} ({{least_ratio:ratio}} to {{most_ratio:ratio}} in the {{kernels:plural kernel}} that take most)"
    )


class DeviceModels(_AsLong):
    """The same, where all of its ranks and none of its peers have another model of device.

    About: the models. Figures: as of whole_device.
    """

    models: ClassVar[str] = f"{{ranks:who}} on {{about:own model}} {_AsLong.as_long} on {{about:peers' model}}"

    def wording(self) -> str:
        """Add the range of single kernels, where there is one."""
        of_kernels = " ({least_ratio:ratio} to {most_ratio:ratio} in single kernels)"
        return self.models + ("" if self.least_ratio is None else of_kernels)


_SLOW_PART: Final = {
    "copies": "the link, not the device",
    "arithmetic": "the device's clock, which its power, temperature or settings limit",
    "memory": "the device's memory",
}
"""Family → what is slow there; of the others it is not the device."""


class _InPart(Evidence):
    """What ranks are slower in alone."""

    excess_us_per_step: float
    ratio: float
    others_ratio: float
    others_share: float

    def wording(self) -> str:
        """Say what follows from which kernels these are."""
        return (
            "{ranks:who} {ranks:?takes|take} {excess_us_per_step:duration} a step longer in {about:kernels} alone "
            "({ratio:ratio}); all other kernels, {others_share:percent} of what {ranks:?it computes|they compute}, "
            "take {others_ratio:ratio} as long as on {ranks:its} peers: "
            f"{_SLOW_PART.get(str(self.about), 'not the device')}"
        )


class OneFamily(_InPart):
    """It is slower in one family of kernels, and takes as long as its peers, or nearly, for all others.

    The families are attention, experts, lookups, selections, matrix_products, copies, or all that arithmetic or memory
    bounds; others_share is how much of what it computes the others are. About: family.
    """


class OneKernel(_InPart):
    """The same of a single kernel. About: operator."""


class Stopped(Evidence):
    """Its threads stand still in the middle of operations (and between them where between is 1), next to its peers'."""

    stopped_us_per_step: float
    peers_us_per_step: float
    between: Number | None = None

    def wording(self) -> str:
        """Say where they stop."""
        where = "in and between operations" if self.between else "in the middle of operations"
        still = "stop for {stopped_us_per_step:duration} a step"
        return f"threads of {{ranks:who}} {still} {where}, those of peers for {{peers_us_per_step:duration}}"


class Profiler(Evidence):
    """How long the profiler's own work holds up launches: of the median rank, or theirs next to their peers'."""

    held_us_per_step: float
    peers_us_per_step: float | None = None

    def wording(self) -> str:
        """Say it of the median rank, or of some next to their peers."""
        work = "the profiler's own work (as asking for buffers) holds up"
        if not self.ranks:
            return f"{work} the median rank's launches for {{held_us_per_step:duration}} a step"
        peers = "those of peers for {peers_us_per_step:duration}"
        return f"{work} launches of {{ranks:who}} for {{held_us_per_step:duration}} a step, {peers}"


class DeviceIdle(Evidence):
    """How long the median rank's device waits for its host to launch."""

    template = (
        "the median rank's device idles {idle_us:duration} a step ({share_of_step:percent}) because its host has not "
        "launched yet"
    )
    idle_us: float
    share_of_step: float


class OneByOne(Evidence):
    """How long the median rank's device idles between launches that follow one another."""

    template = (
        "the median rank's device idles {idle_us:duration} a step ({share_of_step:percent}) between launches that "
        "follow one another"
    )
    idle_us: float
    share_of_step: float


class DeviceTaken(Evidence):
    """How long what is launched waits for a device that runs nothing of its rank."""

    template = (
        "what the median rank has launched waits {waited_us:duration} a step ({share_of_step:percent}) for a device "
        "that runs nothing of its rank: another process has the device"
    )
    waited_us: float
    share_of_step: float


class PriceRange(Evidence):
    """The least and the most that a step would be shorter by.

    Of a slow network one is the replay's, the other how long its transfers take. About: perhaps network.
    """

    least_us: float
    most_us: float

    def wording(self) -> str:
        """Say what either end is."""
        if self.about == "network":
            return "a step loses {least_us:duration} to it by replay, {most_us:duration} by the length of its transfers"
        return "a step loses at least {least_us:duration} and at most {most_us:duration} to it"


class Exposed(Evidence):
    """Of one rank alone: communication that no compute hides, waiting included."""

    template = (
        "{exposed_us:duration} a step ({share_of_step:percent}) are exposed communication; only the other ranks' "
        "recordings show how much of it is waiting for a slow rank"
    )
    exposed_us: float
    share_of_step: float


class Since(Evidence):
    """What it had more than its peers from the step of its onset to that of its end, and in the other steps."""

    more: ClassVar[str] = "{after_us:duration} a step more than peers"

    before_us: float
    after_us: float
    step: Number | None = None
    until: Number | None = None

    def wording(self) -> str:
        """Say what was before; of what is over, in which steps it was there."""
        if self.until is None and self.step is None:
            return f"{self.more}, in the other steps {{before_us:duration}}"
        if self.until is None:
            return f"since step {{step:whole}}: {self.more}, {{before_us:duration}} before"
        first = "until step {until:whole}" if self.step is None else "from step {step:whole} to {until:whole}"
        return f"{first} {self.more}, in the other steps {{before_us:duration}}"


class Grew(Evidence):
    """By how much longer its peers wait, by recorded times, in the steps in which it is slow than in the others."""

    template = (
        "peers wait {grown_us:duration} a step longer for it than in the other steps (standard error "
        "{error_us:duration})"
    )
    grown_us: float
    error_us: float


class ThanBefore(Evidence):
    """What a link, or ranks, take in the steps in which they are slow, and in the others.

    About: the link, or the part of the step.
    """

    before_us: float
    after_us: float
    steps: Number
    of_steps: Number
    step: Number | None = None
    until: Number | None = None

    def wording(self) -> str:
        """Say in which steps, and whether it is a link."""
        since = "step {step:whole} on" if self.until is None else "steps {step:whole} to {until:whole}"
        if self.about in {"compute", "input"}:
            spend = "{ranks:?spends|spend} {after_us:duration} a step" + (" each" if len(self.ranks) > 1 else "")
            return f"{{ranks:who}} {spend} on {{about}} from {since}, {{before_us:duration}} in the other steps"
        others = "{before_us:duration} in the other steps (waiting excluded)"
        return f"{{about}} takes {{after_us:duration}} a step from {since}, {others}"


class QueuedBehind(Evidence):
    """Transfers next to a slow link that are slow in one direction only. About: them."""

    template = "{about} became slow at the same time, in one direction only: it queues behind this link"


class WhileSlow(Evidence):
    """What a step costs in which it is slow, by a replay with what it took in the others."""

    template = (
        "it is slow in {steps:count} of {of_steps:count} steps and costs {lost_us:duration} in each of them, replayed "
        "with its times in the others"
    )
    lost_us: float
    steps: Number
    of_steps: Number


class RankByOrder(Evidence):
    """Which file it is: files do not say their ranks, and are numbered in the order of their names. About: the file."""

    template = "{ranks:who} is {about}: no file says its rank, and they are numbered in the order of their names"


class Replayed(Evidence):
    """The step with and without the finding, of its ranks; how far off that is at most in 95 of 100 samples.

    And whether that is with the other findings fixed. About: cause. Figures: before_us, after_us; of a sample of the
    steps replayed_steps, steps, plus_minus_us, of the ranks replayed_ranks, ranks; others_fixed; of_samples where the
    finding is priced by all recorded steps, and this is of the sampled ones alone.
    """

    before_us: float
    after_us: float
    replayed_steps: Number | None = None
    steps: Number | None = None
    plus_minus_us: float | None = None
    replayed_ranks: Number | None = None
    ranks_: Number | None = None
    others_fixed: Number | None = None
    of_samples: Number | None = None

    def wording(self) -> str:
        """Say what was undone, and of which steps and ranks."""
        cause = CAUSES[self.about or "unknown"]
        undone = (cause.undone_of_ranks if self.ranks else None) or cause.undone
        once = "" if self.others_fixed is None else ", once the other findings are fixed"
        sampled = []
        if self.replayed_steps is not None:
            sampled += ["± {plus_minus_us:duration}: {replayed_steps:whole} of {steps:whole} steps were replayed"]
        if self.replayed_ranks is not None:
            sampled += ["{replayed_ranks:whole} of {ranks_:count} ranks were replayed"]
        of_sample = f" ({'; '.join(sampled)})" if sampled else ""
        step = "a step" if self.of_samples is None else "a sampled step"
        return f"replayed {undone}, {step} {{self:takes instead}}{once}{{self:why as long}}{of_sample}"


class OthersNearlyAsLate(Evidence):
    """Why the price is little. Figures: saved_together_us where there are several findings."""

    saved_together_us: float | None = None

    def wording(self) -> str:
        """Add what all findings cost, where there are several."""
        together = "; all findings fixed together save {saved_together_us:duration}"
        little = "the saving is small because other ranks arrive almost as late"
        return little + ("" if self.saved_together_us is None else together)


class Estimated(Evidence):
    """The step with and without the finding, where no replay can price it."""

    template = "without that the step would take about {after_us:duration} instead of {before_us:duration}"
    before_us: float
    after_us: float


_PROCESS_GROUP: Final = " of process group "
_CALL: Final = "{operation:name} number {sequence:count} of process group {group:name}"
_HAVE: Final = "{ranks:who} {ranks:?has|have}"
_WAIT: Final = "{waiting:plural rank} {waiting:?waits|wait}"


class _OfCall(Evidence):
    """What is about a call in a process group."""

    @property
    def operation(self) -> str:
        """Return what was called."""
        return str(self.about).partition(_PROCESS_GROUP)[0]

    @property
    def group(self) -> str:
        """Return its process group."""
        return str(self.about).partition(_PROCESS_GROUP)[2]


class NotArrived(_OfCall):
    """Of a hang: who has not called it, and how many wait in it. About: collective and process group."""

    template = (
        f"{_HAVE} not called {_CALL}; {{waiting:plural rank}} of its {{members:count}} {{waiting:?waits|wait}} in it"
    )
    sequence: float
    waiting: float
    members: float


class NoDump(_OfCall):
    """Members that left no dump. About: collective and process group. Figures: sequence, waiting, members."""

    sequence: float | None = None
    waiting: float | None = None
    members: float | None = None

    def wording(self) -> str:
        """Say who waits for them, where that is known."""
        left = "{ranks:who} left no dump, like a rank that is in no call"
        lost = "if only the dump was lost, the rank may be in the call too: then look at the network"
        return left if self.waiting is None else f"{left}; {_WAIT} in {_CALL} ({lost})"


class OtherCall(Evidence):
    """Who called something else under that number. About: both operations and the process group."""

    template = "{ranks:who}, as collective number {sequence:count}, called {about}"
    sequence: float
    others: float


class AllArrived(_OfCall):
    """All members are in it, and none leaves it. About: collective and process group."""

    template = f"all {{members:count}} members have called {_CALL}, and none has finished it"
    sequence: float
    members: float


class LastCompleted(Evidence):
    """The last one of that group that all were through with. About: collective."""

    sequence: float

    def wording(self) -> str:
        """Name it, where its name is known."""
        named = ", {about:name}" if self.about else ""
        return f"the last collective that all members of that group finished is number {{sequence:count}}{named}"


class WaitsElsewhere(Evidence):
    """Who waits in another process group meanwhile, which the others call later."""

    template = "{ranks:who} {ranks:?waits|wait} in another process group: groups are called in another order there"


class HeldUp(_OfCall):
    """Who has not called it either, since it waits itself. About: collective and process group."""

    template = f"{_HAVE} not called {_CALL} either, as {{ranks:?it waits itself|they wait themselves}}; {_WAIT} in that"
    sequence: float
    waiting: float
    members: float


def _numbered(sequence: float | None) -> str:
    return "" if sequence is None else " number {sequence:count}"


class InNoCall(Evidence):
    """Who is waited for and waits for nothing. About: what it called last, and at where in the program."""

    sequence: float | None = None

    @property
    def operation(self) -> str:
        """Return what was called last."""
        return str(self.about).partition(" at ")[0]

    @property
    def location(self) -> str:
        """Return where in the program that was; empty where it is not recorded."""
        return str(self.about).partition(" at ")[2]

    def wording(self) -> str:
        """Name the last call, and where it was made."""
        last = "{ranks:?its last one is|their last ones are} {operation:name}"
        at = ", at {location}" if self.location else ""
        return f"{{ranks:who}} {{ranks:?waits|wait}} in no call; {last}{_numbered(self.sequence)}{at}"


class CalledAt(Evidence):
    """Where in the program ranks made a call. About: file, line and function."""

    sequence: float | None = None

    def wording(self) -> str:
        """Name the call by its number, where it has one."""
        return f"{{ranks:who}} called{_numbered(self.sequence) or ' that'} at {{about}}"


class WaitsFor(_OfCall, kw_only=True):
    """Who waits in a transfer, and its other end (−1 where that is unknown).

    About: send or recv and process group.
    """

    sequence: float | None = None
    peer: float

    def wording(self) -> str:
        """Name both ends, and the transfer's number where it has one."""
        end = {"send": "a send to", "recv": "a receive from"}.get(self.operation, "a transfer with")
        known = "rank {peer:count}" if self.peer >= 0 else "an unknown rank"
        number = f"{_numbered(self.sequence)} ".lstrip()
        return f"{{ranks:who}} {{ranks:?waits|wait}} in {end} {known} ({number}of process group {{group:name}})"


class WaitCircle(Evidence):
    """Ranks that wait for each other."""

    template = "{ranks:who} wait for each other: the order of their calls differs"


class TransfersMet(Evidence):
    """Ranks that are in sends and receives which answer each other."""

    template = "{ranks:who} are in matching sends and receives, and none has finished"


class NoMajority(Evidence):
    """Members called different things, none of them more than half."""

    template = (
        "as number {sequence:count} the {members:count} members called different things, none of them more than half "
        "of all members: it is unknown which is right"
    )
    sequence: float
    members: float


class Called(Evidence):
    """Of these: who called what. About: what, and the process group."""

    template = "{ranks:who} called {call} as number {sequence:count} of process group {group:name}"
    sequence: float

    @property
    def call(self) -> str:
        """Return what was called."""
        return str(self.about).rpartition(_PROCESS_GROUP)[0]

    @property
    def group(self) -> str:
        """Return its process group."""
        return str(self.about).rpartition(_PROCESS_GROUP)[2]


class NoReport(_OfCall):
    """As no_dump, of a log: ranks that reported no time-out. About: collective and process group."""

    template = f"{{ranks:who}} reported no time-out; {_WAIT} in {_CALL}"
    sequence: float
    waiting: float
    members: float


class LogNames(Evidence):
    """Whom the job's log itself names, as others wait for them. About: the log's words."""

    waiting: float | None = None

    def wording(self) -> str:
        """Say who waits, if the log shows it."""
        waits = "" if not self.waiting else "; {waiting:plural rank} {waiting:?waits|wait}, by the log"
        return f"the log says of {{ranks:who}}: “{{about}}”{waits}"


class LastError(Evidence):
    """The last error that a rank's own log has, or how it ended. About: the log's words."""

    template = "the last error in the log of {ranks:who}: {about}"


class OthersLost(Evidence):
    """Others end with an error that another rank causes, and this one alone with none. About: their error."""

    template = (
        "{others:plural rank} end with “{about}”, which another rank causes; {ranks:who} alone reports nothing like it"
    )
    others: float


class StuckWatchdog(Evidence):
    """A rank's own watchdog made no progress: its process is held in a call. About: the log's words."""

    template = "{ranks:who} reported no time-out: “{about}”, so that a call of CUDA or Python's lock holds {ranks:them}"


class LinkFailed(Evidence):
    """A port of the network failed on the host of these ranks. About: the log's words."""

    template = "a port on the host of {ranks:who} failed: {about}"


class IsProcess(Evidence):
    """Which process a rank is. About: its program and number."""

    template = "{ranks:who} is {about}"


class Unreachable(Evidence):
    """Ranks whose process did not answer NCCL's RAS."""

    template = "{ranks:who}: NCCL's RAS gets no answer from {ranks:?its process|their processes}"


class Died(Evidence):
    """How a rank's process ended, otherwise than in order: neither signal nor exit_status where nobody saw it.

    out_of_memory is 1 where the kernel's count of such kills rose. About: its exception.
    """

    step: float | None = None
    signal: float | None = None
    exit_status: float | None = None
    out_of_memory: float | None = None

    @property
    def signal_name(self) -> str:
        """Return the name of its signal."""
        return signal_name(int(self.signal or 0))

    def wording(self) -> str:
        """Say by what, and in which step."""
        step, error = _in_step(self.step), " ({about})" if self.about else ""
        if self.signal is not None:
            out = ", as memory ran out: the count of such kills in its memory group rose"
            why = "" if self.out_of_memory is None else out
            return f"{{ranks:who}} died{step} of {{signal_name}}{why}{error}"
        if self.exit_status is not None:
            return f"{{ranks:who}} ended{step} with exit status {{exit_status:count}}{error}"
        if self.about:
            return f"{{ranks:who}} ended{step} by its own error, {{about}}"
        likeliest = "probably SIGKILL, sent by somebody or because memory ran out"
        return f"{{ranks:who}} died{step}, and left no trace of how: {likeliest}"


class OtherStep(Evidence):
    """A rank was in another step than the others when one of them aborted: their calls did not match."""

    template = (
        "{ranks:who} {ranks:?was|were} in step {step:count} when the others were in step {others_step:count}: their "
        "calls did not match"
    )
    step: float
    others_step: float


class EndedEarly(Evidence):
    """A rank ended in order, and others wait for it."""

    step: float | None = None

    def wording(self) -> str:
        """Say in which step."""
        return f"{{ranks:who}} ended in order{_in_step(self.step)}, before the others"


class Unheard(Evidence):
    """A rank is on a host that is not heard. About: the host."""

    step: float | None = None

    def wording(self) -> str:
        """Name the host, where it is known."""
        return "{ranks:who}: the host does not report" + (" ({about})" if self.about else "")


class StandsAt(Evidence):
    """Where ranks of a job that stands still are, by their stacks; was is 1 of one that died there.

    About: the place.
    """

    step: float | None = None
    was: float | None = None

    def wording(self) -> str:
        """Say in which step, and where."""
        stand = "{ranks:?is|are}" if self.was is None else "{ranks:?was|were}"
        return f"{{ranks:who}} {stand}{_in_step(self.step)}" + (", {about}" if self.about else "")


def signal_name(number: int) -> str:
    """Return `SIGKILL`; of a number that is no signal here, that."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _in_step(step: float | None) -> str:
    return "" if step is None else " in step {step:count}"


class EveryStep(Evidence):
    """By the history of steps, sampled or not, it takes longer by itself than its peers, beyond what it did before.

    About: part of the step, perhaps.
    """

    steps: float
    excess_us_per_step: float
    share_of_step: float

    def wording(self) -> str:
        """Name the part of the step, where one makes it up."""
        of_part = ", outside of the model's passes" if self.about == "loop" else " in {about}"
        where = "" if self.about is None else of_part
        takes = f"{{ranks:?takes|take}} {_COST} more than peers"
        return f"in the history of {{steps:plural step}} {{ranks:who}} {takes}{where}"


class OwnLines(Evidence):
    """By the lines that each rank prints itself it takes longer than its peers, in the steps that it shows in.

    About: the phase of the step.
    """

    template = (
        "{ranks:who} {ranks:?takes|take} {longer_us:duration} longer in {about} than {ranks:its} peers, by the lines "
        "that ranks print themselves"
    )
    longer_us: float


class CollectsGarbage(Evidence):
    """By the history of steps it collects garbage for longer than its peers."""

    template = (
        "{ranks:who} {ranks:?collects|collect} garbage for {collected_us_per_step:duration} of a step, " + _PEERS_FOR
    )
    collected_us_per_step: float
    peers_least_us: float
    peers_most_us: float


class Compiles(Evidence):
    """By the history of steps it compiles for longer than its peers."""

    template = "{ranks:who} {ranks:?compiles|compile} for {compiled_us_per_step:duration} of a step, " + _PEERS_FOR
    compiled_us_per_step: float
    peers_least_us: float
    peers_most_us: float


class Noticed(Evidence):
    """While the job ran, the watch noticed it."""

    template = "watching the running job noticed {ranks:them} by step {step:whole}"
    step: Number


KINDS: Final = Evidence.kinds
"""Every kind, by its name."""

if TYPE_CHECKING:
    EvidenceKind = str
else:
    EvidenceKind = Literal[tuple(KINDS)]
    """The name of a kind, as schemas and conditions limit it."""
