"""What ordinary noise would cost a job on other numbers of ranks."""

from typing import Literal

from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.trace.model import KairWarning

SynchronisedBy = Literal["collective", "step", "own_times", "history"]
"""Where ranks were taken to wait for the last one: in each collective; once a step, since one rank holds up all of the
step's collectives; once a step, by ranks' own times, since not all ranks meet in collectives (as in a pipeline), which
is less than is waited in fact; once a step, by their own times in the history of steps."""
WhyNoForecast = Literal["too_far", "few_values"]
"""`too_far`: more than a hundred times as many ranks as were recorded; `few_values`: too few lie in the tail to show
how it goes on so far beyond what was seen."""
NoiseKind = Literal[
    "compute",
    "input",
    "host",
    "communication",
    "garbage_collection",
    "no_core",
    "asleep",
    "shared_by_host",
    "lasting",
]
"""The classes of stage 1 (localize); of the history of steps `no_core` (the training thread was ready and had none) and
`asleep` (it was blocked). `shared_by_host`: all ranks of a host are late together; where one host or none is known,
ranks that are seen to be. `lasting`: ranks differ for good, as devices do of which some are a little slower."""


@dataclass(frozen=True)
class NoiseCause:
    """A part of what is lost."""

    kind: NoiseKind
    """What made the last rank late."""
    lost_share: float
    """Of the step: what of the last rank's lateness is by this. The causes' shares add up to the whole."""


@dataclass(frozen=True)
class NoiseForecast:
    """The job on so many ranks."""

    ranks: int
    """How many."""
    lost_share: float | None = None
    """Of the step, how long the mean rank would wait for late ones: the median of the draws. Null: no forecast."""
    least_share: float | None = None
    """The lower end of the interval."""
    most_share: float | None = None
    """The upper end of it."""
    step_time_us: float | None = None
    """What the step would take, if nothing else grew with the ranks."""
    causes: tuple[NoiseCause, ...] = ()
    """The largest first; empty without a forecast."""
    why_none: WhyNoForecast | None = None
    """Null where there is one."""


@dataclass(frozen=True)
class ForecastResult:
    """What ordinary noise would cost a job on other numbers of ranks: how long they wait for the last of them."""

    forecasts: tuple[NoiseForecast, ...]
    """One for each number of ranks asked about, the smallest first."""
    recorded_ranks: int
    """That the forecast is made from."""
    lost_share: float
    """Of the step, how long the mean one of them waits as recorded."""
    step_time_us: float
    """The mean step without what was waited for ranks that are left out."""
    per_host: int
    """Ranks of a host, as forecast."""
    synchronised_by: SynchronisedBy
    """Where ranks were taken to wait for the last one."""
    meetings: int
    """How often ranks wait for one another in a step, by that model."""
    tail_shape: float
    """Of the noise's tail: 0 falls exponentially; above it as a power, the slower the larger it is."""
    level: float
    """With which a job of that size lies within the interval."""
    left_out: tuple[Rank, ...]
    """Ranks that are slower than noise makes them, or that were left out by hand: what they cost is no noise."""
    draws: int
    """How often each size of a fault was put into the recording."""
    seed: int
    """Of the random draws."""
    steps: tuple[int, ...]
    """Those that were analysed."""
    warnings: tuple[KairWarning, ...]
