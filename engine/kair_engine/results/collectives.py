"""Rates as engineers speak of them: bandwidth of collectives, overlap of communication, TFLOP/s of matrix products.

Giga and tera are powers of ten, as vendors and nccl-tests count.
"""

from dataclasses import dataclass
from typing import Literal

from kair_engine.ranks import Rank
from kair_engine.trace.model import KairWarning

CollectiveKind = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send_recv",
    "grouped_send_recv",
    "barrier",
    "other",
]
"""What a collective does. `send_recv` is one send with its receive; `grouped_send_recv` are several that run as one
kernel, of which a recording does not say what they are; `other` has an unknown name."""


@dataclass(frozen=True)
class GroupTransfers:
    """Transfers of one kind and size class in one process group, or over one link from sender to receiver."""

    group: str | None
    """The process group's name in the recording; None of a send with its receive, and where none is named."""
    kind: CollectiveKind
    """What they do, by the name of their kernel or operator, or of what launched it."""
    ranks: tuple[Rank, ...]
    """The members that are recorded; of a send with its receive the sender and the receiver."""
    members: int
    """Ranks of the group, recorded or not: n of the formulas; 2 of a send with its receive."""
    hosts: int | None
    """On how many hosts the recorded members are; null where that is not known of all."""
    size_class_bytes: int | None
    """The class holds messages from so many bytes to less than twice as many; null where sizes are not recorded."""
    message_bytes: float | None
    """The median size as nccl-tests counts it, so of an all-gather what a rank has in the end; null where unknown."""
    calls: float
    """Per chosen step, on average."""
    transfer_us: float
    """The median time of one transfer: from its last member's arrival, so that it includes no waiting."""
    transfer_us_per_step: float
    """All of them together, per chosen step."""
    algorithm_gb_per_s: float | None
    """The median of size over transfer time, GB/s; null where sizes are not recorded."""
    bus_gb_per_s: float | None
    """The median of bus bandwidth, GB/s: the same times a factor of kind and members, by which it can be compared with
    a link's speed (nccl-tests, doc/PERFORMANCE.md); null where sizes are not recorded, or the kind has no factor."""
    siblings: int
    """How many other groups (links) do the same transfers, on as many hosts; 0: there is nothing to hold it against."""
    ratio: float | None
    """Its speed over its siblings' median in the same transfers; null without siblings."""
    p_value: float | None
    """How likely chance makes any of all compared that slow; null where siblings or steps are too few for a test."""
    slow: bool
    """Slower than its siblings by more than chance explains, and in nearly all steps."""
    differs: bool = False
    """Slower in nearly all steps, at a cost, than siblings that are too few to say which of them is usual."""


@dataclass(frozen=True)
class RankRates:
    """What one rank's communication and matrix products reach."""

    rank: Rank
    """Its number in the job."""
    communication_us: float
    """How long communication is under way in an average step, waiting included; what runs at once counts once."""
    waiting_us: float
    """How long its communication waits for other members in an average step, each by itself."""
    exposed_us: float
    """How long communication is under way in an average step while the rank computes nothing elsewhere."""
    overlap: float | None
    """The share of communication that is covered by computing on other lanes of the rank; null without communication.
    """
    product_tflop_per_s: float | None
    """Of all its matrix products together, TFLOP/s (10^12 floating-point operations a second); null without shapes."""
    product_ratio: float | None
    """The speed of its matrix products over its peers' median for the same shapes; null without peers."""
    product_p_value: float | None
    """How likely chance makes any of all compared that slow; null where peers or steps are too few for a test."""
    products_slow: bool
    """Slower in matrix products than its peers by more than chance explains, and in nearly all steps."""


@dataclass(frozen=True)
class ProductShape:
    """Matrix products of one shape: `batch` times an m × k matrix by a k × n one."""

    batch: int
    """How many products one call does."""
    m: int
    """Rows of the first matrix."""
    n: int
    """Columns of the second matrix."""
    k: int
    """Columns of the first matrix, rows of the second."""
    calls: float
    """Per step and rank that does them, on average."""
    us_per_step: float
    """Their time per step, the mean of the ranks that do them."""
    tflop_per_s: float
    """2 · batch · m · n · k over the time of a call, the median of the ranks."""
    min_tflop_per_s: float
    """The same of the slowest rank."""
    min_rank: Rank
    """The slowest rank."""


@dataclass(frozen=True)
class MatrixProducts:
    """Matrix products of which the recording has the shapes."""

    timed_on: Literal["device", "host"]
    """Whether time is that of the kernels that they launched, or of the operators on threads themselves."""
    tflop_per_s: float
    """2 · batch · m · n · k over time, all products of a rank together, the median of the ranks."""
    min_tflop_per_s: float
    """The same of the slowest rank."""
    min_rank: Rank
    """The slowest rank."""
    share_of_compute: float
    """Their part of all computing time of the ranks that do them; the rest has no shapes, or is no matrix product."""
    shapes: tuple[ProductShape, ...]
    """Those that take most time, the longest first, at most `limit` of them."""
    total_shapes: int
    """How many there are."""


@dataclass(frozen=True)
class CollectivesResult:
    """What communication and matrix products reach, and which groups, links and ranks are slower than their like."""

    ranks: tuple[Rank, ...]
    """Those that were recorded."""
    steps: tuple[int, ...]
    """The chosen ones."""
    step_time_us: float
    """What a step takes."""
    groups: tuple[GroupTransfers, ...]
    """Those that were asked for: slow ones first, then by the time that they take; at most `limit` of them."""
    total_groups: int
    """How many there are of those that were asked for."""
    compared: int
    """How many tests of siblings and peers the p-values allow for, listed or not."""
    overlap: float | None
    """The share of communication that computing covers, the median of the ranks; null without communication."""
    exposed_us: float | None
    """So long of a step communication, waiting included, is not covered, the median of the ranks; null without any."""
    most_exposed_us: float | None
    """The same of the rank with most."""
    most_exposed_rank: Rank | None
    """The rank with most."""
    by_rank: tuple[RankRates, ...]
    """Every rank where that was asked for; else those that were asked for by number, and those with slow products."""
    products: MatrixProducts | None
    """Null where no shapes of matrix products are recorded."""
    warnings: tuple[KairWarning, ...]
    """What is not known."""
