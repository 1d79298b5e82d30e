"""Warnings with figures: a class each, with its code, its figures and its sentence.

The engine makes them, and `kair_tui/render/warnings.py` fills their templates, whose fields are as in `evidence_kinds`.
Units are in the figures' names, shares are of 1. Warnings that are a text alone are `KairWarning` itself.
"""

import math
from typing import TYPE_CHECKING, Final, Union

from kair_engine.results.kinds import Number
from kair_engine.trace.model import KairWarning

_IN_DOUBT: Final = "a part of its recording is missing, its times are in doubt"
_NOT_COMPARED: Final = "{ranks:?was|were} not compared with them"


class TooFewSteps(KairWarning, frozen=True, kw_only=True):
    """No rank can be accused in so few steps."""

    template = (
        "in {steps:plural step} one of {peers:count} ranks is slowest throughout by chance too often to be accused: "
        "record at least {fewest_steps:count} steps, better 10"
    )
    code: str = "few_steps"
    steps: int
    fewest_steps: int
    peers: int


class SlowMoment(KairWarning, frozen=True, kw_only=True):
    """A rank was slower in all of too few steps."""

    template = (
        "{ranks:who} took {share_of_step:percent} of the step longer than its peers ({about}), but in "
        "{steps:plural step} a slow rank looks like a slow moment: record at least {fewest_steps:count} "
        "steps, better 10"
    )
    code: str = "few_steps"
    share_of_step: float
    steps: int
    fewest_steps: int


class GiantStep(KairWarning, frozen=True, kw_only=True):
    """A step was set aside since it outweighs all others."""

    code: str = "giant_step"
    step: int
    length_us: float
    others_us: float
    others: int

    def wording(self) -> str:
        """Say for whom its peers waited, where that is one rank."""
        why = "most of it peers waited for {ranks:who}" if self.ranks else "no single rank was waited for"
        return (
            "step {step} took {length_us:duration}, longer than the {others:count} others together "
            f"({{others_us:duration}}), and {why}: one step accuses nobody, and all figures leave it out"
        )


class ProfilersBeganApart(KairWarning, frozen=True, kw_only=True):
    """Steps are left out in which ranks waited for a profiler that began late."""

    code: str = "profilers_began_apart"
    rank: int
    first_rank: int
    behind_us: float
    others: int
    """Ranks besides that whose profilers began late."""
    step: int
    steps: int

    def wording(self) -> str:
        """Count the other late ranks, and name the steps."""
        more = " ({others:plural more rank} began late as well)" if self.others else ""
        which = "step {step} is" if self.steps == 1 else "the first {steps} steps are"
        return (
            "the profiler of rank {rank} began {behind_us:duration} after rank {first_rank}'s"
            f"{more}: {which} left out, in which ranks waited for it"
        )


class GraphsNotRecorded(KairWarning, frozen=True, kw_only=True):
    """Devices run CUDA graphs of which only begin and end are recorded."""

    template = (
        "devices are busy with CUDA graphs for {share_of_step:percent} of the step, whose contents (kernels, "
        "collectives) are not recorded, so it is unknown which rank is slow: record with nsys profile "
        "--cuda-graph-trace=node"
    )
    code: str = "graphs_not_recorded"
    share_of_step: float


class UnknownMembers(KairWarning, frozen=True, kw_only=True):
    """A part of a rank's step went by in communication that was not matched."""

    template = (
        "{share_of_step:percent} of {ranks:who}'s step was communication with unknown members; how much of it was "
        "waiting is unknown, and it counts as {about}"
    )
    code: str = "unmatched_collectives"
    share_of_step: float


class ZCannotFire(KairWarning, frozen=True, kw_only=True):
    """The paper's test accuses nobody among so few ranks."""

    template = (
        "with {among:count} ranks no |z| can exceed √(N−1) = {highest_z:significant}: the paper's z > "
        "{threshold:count} cannot fire"
    )
    code: str = "z_cannot_fire"
    among: int
    highest_z: float
    threshold: Number


class InexactReplay(KairWarning, frozen=True, kw_only=True):
    """The replay is off the recording: without any delay, or where hosts run ahead with those that it keeps."""

    template = (
        "the replay is {off:whole percent} off the recording, most in step {worst_step} ({replayed_us:duration} "
        "instead of {recorded_us:duration}): read the figures with care"
    )
    code: str = "simulation_error"
    off: float
    worst_step: int
    replayed_us: float
    recorded_us: float


class NobodyWaits(KairWarning, frozen=True, kw_only=True):
    """Ranks are slower than their peers, who do not wait for them."""

    template = (
        "{ranks:who} {ranks:?is|are} slower than {ranks:its} peers by {share_of_step:percent} of the step, but they "
        "wait only {waited_share:percent} of it for {ranks:them}: no straggler"
    )
    code: str = "nobody_waits"
    share_of_step: float
    waited_share: float


class ReplayInDoubt(KairWarning, frozen=True, kw_only=True):
    """A rank that nobody doubts: the order of arrivals and its own kernels say the same, and a replay does not."""

    template = (
        "{ranks:who} {ranks:?comes|come} last to nearly all collectives, with kernels of {ranks:its} own that take "
        "{waited_share:percent} of the step longer, but a replay prices that at {share_of_step:percent}: the price is "
        "what {ranks:its} kernels take longer, the replay is in doubt"
    )
    code: str = "replay_in_doubt"
    share_of_step: float
    waited_share: float


class GroupsDiffer(KairWarning, frozen=True, kw_only=True):
    """One of two or three groups or links is slower than its siblings."""

    template = (
        "the transfers of {ranks:who} ({about}) take {own_us:duration} a step, the same ones of their sibling "
        "{other_us:duration} ({share_of_step:percent} of the step): {links:count} groups or links cannot say which is "
        "usual; the same job on other hosts, or with four of them, would"
    )
    code: str = "groups_differ"
    own_us: float
    other_us: float
    links: int
    share_of_step: float


class TooManyWorkers(KairWarning, frozen=True, kw_only=True):
    """Not every rank is priced by itself."""

    template = (
        "of {among:count} ranks the {priced:count} that exceed their peers most are priced one by one; none of the "
        "others makes a step more than {bound:percent} longer"
    )
    code: str = "too_many_workers"
    among: int
    priced: int
    others_at_most: float

    @property
    def bound(self) -> float:
        """Return what others cost at most, rounded up."""
        return math.ceil(self.others_at_most * 1000) / 1000


class NoCommonStep(KairWarning, frozen=True, kw_only=True):
    """Ranks recorded other steps than the others."""

    template = f"{{ranks:who}} recorded none of the steps that the other ranks did, and {_NOT_COMPARED}"
    code: str = "no_common_step"


class NoPeer(KairWarning, frozen=True, kw_only=True):
    """Ranks are alone in their role, where others have peers."""

    template = (
        "{ranks:who} {ranks:?has|have} no peer: no other rank communicates alike, so {ranks:?it was|they were} "
        "compared with none (a pipeline stage of one rank, another build, or a part of the recording missing?)"
    )
    code: str = "no_peer"


class FewerRecorded(KairWarning, frozen=True, kw_only=True):
    """A rank has fewer operations, collectives or matched ones than its peers."""

    code: str = "fewer_recorded"
    recorded: float
    peers: float

    @property
    def less(self) -> float:
        """Return by what share it has fewer."""
        return 1 - self.recorded / self.peers

    def wording(self) -> str:
        """Say of what it has fewer."""
        if self.about == "matched":
            return (
                "of {ranks:who}'s communication {recorded:rounded} calls a step match other ranks', of its peers' "
                f"{{peers:rounded}}: {_IN_DOUBT}"
            )
        what = "communication calls" if self.about == "communication" else "operations"
        return (
            f"{{ranks:who}} recorded {{recorded:rounded}} {what} a step where its peers have {{peers:rounded}} "
            f"(−{{less:whole percent}}): {_IN_DOUBT}"
        )


class LargerShare(KairWarning, frozen=True, kw_only=True):
    """Ranks take longer for no more than the samples that they are given."""

    template = (
        "{ranks:who} {ranks:?takes|take} longer for what the job gives {ranks:them}, {samples:g} samples a step, peers "
        "{usual_samples:g}: {us_per_sample:duration} a sample, peers {usual_us_per_sample:duration}, so no straggler"
    )
    code: str = "larger_share"
    samples: float
    usual_samples: float
    us_per_sample: float
    usual_us_per_sample: float


class NewSizes(KairWarning, frozen=True, kw_only=True):
    """Steps are left out in which what is compiled may be compiled for other batch sizes."""

    code: str = "new_sizes"
    step: int
    changes: int
    steps: int

    def wording(self) -> str:
        """Count the changes, where there are several."""
        several = "" if self.changes == 1 else ", and {changes:count} times in all"
        return (
            f"from step {{step}} on ranks take other numbers of samples than before{several}: {{steps:plural step}} "
            "from there on, in which code may be compiled again for them, are left out"
        )


class BusyMachine(KairWarning, frozen=True, kw_only=True):
    """Other programs ran while a machine was probed."""

    template = (
        "{about}: the probe waited for a core {waited_share:percent} of the time: other programs ran there meanwhile"
    )
    code: str = "busy_machine"
    waited_share: float


if TYPE_CHECKING:
    AnyWarning = KairWarning
else:
    AnyWarning = Union[KairWarning, *KairWarning.__subclasses__()]
"""A warning of any kind, as what was kept is read."""
