"""What a probe measured on a machine, and how that compares with its peers."""

from dataclasses import dataclass
from typing import Final, Literal

from kair_engine.ranks import Rank
from kair_engine.trace.model import KairWarning

MeasureName = Literal[
    "gpu_matrix_product",
    "gpu_memory_copy",
    "cpu_matrix_product",
    "cpu_memory_copy",
    "python_loop",
    "wake_up",
    "all_reduce_64_kib",
    "all_reduce_1_mib",
    "all_reduce_16_mib",
]
Unit = Literal["gflop_per_s", "gb_per_s", "loops_per_s", "us"]

Pattern = Literal["steady", "scattered", "spells"]
"""Over time: hardly any spread, a spread without order, or slow repetitions that come together."""

RowVerdict = Literal["slower", "as_fast", "cannot_tell"]

ProbeVerdict = Literal["confirmed", "not_confirmed", "cannot_tell"]

LinkState = Literal["measured", "one_rank", "no_torch", "no_address", "failed"]
"""Whether the link was measured, or why not."""


BUSY_ABOVE: Final = 0.05
"""Of the probe's time, for which its thread waited for a core."""


@dataclass(frozen=True)
class HostCounters:
    """What the system counted while the probe ran; null if it does not count."""

    run_queue_share: float | None
    """Of the probe's time: how long its thread could have run, and waited for a core."""
    involuntary_switches_per_s: float | None
    """Times a second that the system took the core away from its process."""
    cpu_quota: float | None
    """Cores that the control group may use; null also without a limit."""
    throttled_periods: int | None
    """Periods of the control group in which that limit stopped it."""


@dataclass(frozen=True)
class ProbedMachine:
    """Where, when and with what a probe ran."""

    host: str
    """Its name."""
    rank: Rank | None
    """Its number in the job."""
    world_size: int
    """Processes that were launched together."""
    launch: str | None
    """The same for all that were launched together; null for one alone."""
    device: str
    """The model of the ranks' devices; null where none is recorded."""
    processor: str
    """The model of the machine's CPU."""
    cpus: int
    """Cores that the process may run on."""
    versions: dict[str, str]
    """Of the software that measured, by name."""
    measured_at: str
    """UTC, ISO 8601."""
    seconds: float
    """How long it measured."""
    counters: HostCounters
    """What the system counted meanwhile."""

    @property
    def is_busy(self) -> bool:
        """Whether others took its cores while it was probed, so that its processor's figures are not its own."""
        share = self.counters.run_queue_share
        return share is not None and share > BUSY_ABOVE


@dataclass(frozen=True)
class Measurement:
    """One quantity, measured again and again; the fields from `peer_median` on are null without peers."""

    name: MeasureName
    """What is measured."""
    work: str
    """What one operation of a repetition is; only the same work compares."""
    unit: Unit
    """Of the figures below."""
    median: float
    """Of the repetitions."""
    lower_quartile: float
    """A quarter of the repetitions lie below."""
    upper_quartile: float
    """A quarter of the repetitions lie above."""
    pattern: Pattern
    """Whether it is of one rank all the time or now and then, of a group, or of the whole job."""
    values: tuple[float, ...]
    """Of every repetition, in the order of time."""
    peer_median: float | None = None
    """The median of the peers' medians."""
    slowdown: float | None = None
    """The time that the same work takes, over the peers': 1.12 is 12 % slower, also where the unit is a rate."""
    slowdown_low: float | None = None
    """The lower end of the interval that holds the slowdown; all of one comparison hold together with 99 %."""
    slowdown_high: float | None = None
    """Its upper end."""
    verdict: RowVerdict | None = None
    """Whether a rank, host or link is accused, the whole job is slowed, nobody is, or that is open."""


@dataclass(frozen=True)
class ProbeResult:
    """A machine's measurements, alone or compared with its peers'; also what a probe's file holds."""

    schema_version: int
    """Of the file."""
    machine: ProbedMachine
    """The one that was measured; of a comparison, the suspect's."""
    measurements: tuple[Measurement, ...]
    """One for each quantity that could be measured."""
    link: LinkState
    """Whether the connection between ranks was measured, or why not."""
    peers: tuple[ProbedMachine, ...] = ()
    """Whom it was compared with; empty where nothing was compared."""
    verdict: ProbeVerdict | None = None
    """Null where nothing was compared."""
    warnings: tuple[KairWarning, ...] = ()
    summary: str | None = None
    """Whether the accusation is confirmed; null where nothing was compared."""
