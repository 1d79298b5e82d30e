"""Decides which rank is delayed in which step during `kair confirm`: each rank computes it alone, all with one result.

An order holds for a lease of a few steps and ends by itself, so nothing must be revoked if an agent, the coordinator or
a rank is gone. A step's delays depend only on the order's seed and the step's number; a renewed order continues as if
it were one.
"""

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from enum import IntEnum, StrEnum
from hashlib import blake2b
from typing import Final, NoReturn

DELAYS_FILE: Final = "delays.json"
"""The last order, in the run folder."""
LONGEST_LEASE: Final = 64
"""Steps."""
LONGEST_DOSE_NS: Final = 250_000_000
"""Far below every default timeout of a process group (NCCL 10 min, gloo 30 min)."""
FIRST_STEP: Final = 50
"""Earlier delays could change what autotuners measure and choose."""
TOO_LONG: Final = 3
"""In median steps: delays must not add to a step that is already longer."""
FEWEST_FREE: Final = 0.4
"""Smallest share of steps without a delay: a delay's effect is measured against free steps around it."""
MOST_DOSES: Final = 16
MOST_ACCUSED: Final = 1024
MOST_TEXT: Final = 1 << 16
_LARGEST: Final = 1 << 63
_SHARES: Final = 1 << 64


class Arm(IntEnum):
    """The ranks that are delayed in a step."""

    NONE = 0
    ACCUSED = 1
    OTHERS = 2
    ALL = 3
    HALF = 4
    """A random half of the ranks, different in every step."""


class Mode(StrEnum):
    """What an order is to find out."""

    ARMS = "arms"
    """Whether the accused ranks hold up the job: all four arms at one dose."""
    HALVES = "halves"
    """Which rank does, if none is accused."""
    SWEEP = "sweep"
    """What a fix of the accused ranks is worth: all others are delayed, by one dose or another."""


class Place(StrEnum):
    """Where in a step a rank is delayed."""

    AFTER_INPUT = "after_input"
    BEFORE_FORWARD = "before_forward"
    BEFORE_BACKWARD = "before_backward"
    IN_BACKWARD = "in_backward"
    BEFORE_OPTIMIZER = "before_optimizer"
    EACH_MICRO_BATCH = "each_micro_batch"
    """The dose is divided among the micro-batches of the step."""


TAKEN: Final = frozenset(
    {Place.AFTER_INPUT, Place.BEFORE_FORWARD, Place.BEFORE_BACKWARD, Place.BEFORE_OPTIMIZER, Place.EACH_MICRO_BATCH}
)
"""The places at which capture delays a rank."""


class TakesDelays(IntEnum):
    """A rank's setting for delays at its start."""

    NO = 0
    """Its framework has no places for them, or KAIR_CAPTURE_DELAYS=0."""
    WHERE_ALLOWED = 1
    """By a coordinator that was started with --allow-delays."""
    YES = 2
    """KAIR_CAPTURE_DELAYS=1."""


DEFAULT_SHARES: Final[dict[Mode, tuple[float, float, float, float]]] = {
    Mode.ARMS: (0.48, 0.22, 0.22, 0.08),
    Mode.HALVES: (0.5, 0.0, 0.0, 0.0),
    Mode.SWEEP: (0.45, 0.0, 0.55, 0.0),
}
"""Shares of steps: no delay, the accused ranks, all others, all ranks; halves delay a half in the rest."""


@dataclass(frozen=True)
class Order:
    """What the ranks of a job do in some steps. Raises ValueError for invalid values."""

    generation: int
    """Counts the orders of a job; a rank follows the highest that it knows."""
    seed: int
    first_step: int
    last_step: int
    """The lease, including this step."""
    place: Place
    mode: Mode
    doses_ns: tuple[int, ...]
    """One dose; for a sweep two or more, ascending and equally likely."""
    accused: tuple[int, ...]
    """Ranks, ascending; none for halves."""
    shares: tuple[float, float, float, float]
    """Shares of steps without a delay, and with the accused, all others, all ranks delayed. The sum is 1, except for
    halves, whose first is below 1 and others are 0.
    """

    def __post_init__(self) -> None:
        for name in ("generation", "seed", "first_step", "last_step"):
            _require_whole(name, getattr(self, name), 0, _LARGEST - 1)
        if not isinstance(self.place, Place) or not isinstance(self.mode, Mode):
            raise ValueError("an order needs a place and a mode")
        if not 0 <= self.last_step - self.first_step < LONGEST_LEASE:
            raise ValueError(f"a lease has 1 to {LONGEST_LEASE} steps")
        is_sweep, accuses = self.mode is Mode.SWEEP, self.mode is not Mode.HALVES
        doses, ranks = (2, MOST_DOSES) if is_sweep else (1, 1), (1, MOST_ACCUSED) if accuses else (0, 0)
        self._require_ascending("doses_ns", f"{self.mode} has {{}} to {{}} doses", doses, (1, LONGEST_DOSE_NS))
        self._require_ascending("accused", f"{self.mode} accuses {{}} to {{}} ranks", ranks, (0, _LARGEST - 1))
        self._require_shares()

    def _require_ascending(self, name: str, text: str, many: tuple[int, int], each: tuple[int, int]) -> None:
        values = getattr(self, name)
        if not isinstance(values, tuple):
            raise ValueError(f"{name} must be a tuple")
        for value in values:
            _require_whole(f"each of {name}", value, *each)
        if not many[0] <= len(values) <= many[1] or list(values) != sorted(set(values)):
            raise ValueError(f"{text.format(*many)}, ascending")

    def _require_shares(self) -> None:
        if not isinstance(self.shares, tuple) or len(self.shares) != 4:
            raise ValueError("shares must be four numbers")
        for share in self.shares:
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
                raise ValueError("a share is a number from 0 to 1")
        if self.shares[0] < FEWEST_FREE:
            raise ValueError(f"{FEWEST_FREE:.0%} of the steps or more must have no delay")
        if self.mode is Mode.HALVES:
            if self.shares[0] == 1 or any(self.shares[1:]):
                raise ValueError("halves have only the share of steps without a delay, below 1")
        elif not math.isclose(sum(self.shares), 1, abs_tol=1e-9):
            raise ValueError("the shares must add up to 1")


def arm_of(order: Order, step: int) -> Arm:
    """Return the ranks delayed in `step`; NONE outside the lease."""
    if not order.first_step <= step <= order.last_step:
        return Arm.NONE
    drawn = _drawn(order.seed, step) / _SHARES
    if order.mode is Mode.HALVES:
        return Arm.NONE if drawn < order.shares[0] else Arm.HALF
    for arm in (Arm.NONE, Arm.ACCUSED, Arm.OTHERS):
        drawn -= order.shares[arm]
        if drawn < 0:
            return arm
    # A rest from rounding goes to the last arm that has a share.
    return max(arm for arm in (Arm.NONE, Arm.ACCUSED, Arm.OTHERS, Arm.ALL) if order.shares[arm])


def dose_of(order: Order, step: int, rank: int) -> int:
    """Return the delay of `rank` in `step`, in ns; 0 for none."""
    return _dose_in(order, step) if _is_delayed(order, arm_of(order, step), step, rank) else 0


def _dose_in(order: Order, step: int) -> int:
    doses = order.doses_ns
    return doses[0] if len(doses) == 1 else doses[_drawn(order.seed, step, "dose") % len(doses)]


def _is_delayed(order: Order, arm: Arm, step: int, rank: int) -> bool:
    match arm:
        case Arm.ACCUSED:
            return rank in order.accused
        case Arm.OTHERS:
            return rank not in order.accused
        case Arm.HALF:
            return bool(_drawn(order.seed, step, rank) & 1)
        case _:
            return arm is Arm.ALL


def most_cost_ns(order: Order) -> int:
    """Return the most that the lease can lengthen the job: the sum of doses of all delayed steps, in ns."""
    steps = range(order.first_step, order.last_step + 1)
    return sum(_dose_in(order, step) for step in steps if arm_of(order, step) is not Arm.NONE)


def renewed(order: Order, steps: int = LONGEST_LEASE) -> Order:
    """Return the order that follows without a gap."""
    first = order.last_step + 1
    return replace(order, generation=order.generation + 1, first_step=first, last_step=first + steps - 1)


def _drawn(*of: int | str) -> int:
    """Return a number below 2 to the 64, the same in every process."""
    return int.from_bytes(blake2b("/".join(map(str, of)).encode(), digest_size=8).digest())


def to_json(order: Order) -> str:
    """Return the order as text on one line."""
    return json.dumps(asdict(order), separators=(",", ":"))


def from_json(text: str | bytes) -> Order:
    """Return the order in a text. Raises ValueError for any other text."""
    if len(text) > MOST_TEXT:
        raise ValueError(f"an order has at most {MOST_TEXT} bytes")
    try:
        found = json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("the text is no order") from error
    if not isinstance(found, dict) or found.keys() != {field.name for field in fields(Order)}:
        raise ValueError("an order has other fields")
    for name in ("doses_ns", "accused", "shares"):
        if not isinstance(found[name], list):
            raise ValueError(f"{name} must be a list")
        found[name] = tuple(found[name])
    for name, kind in (("place", Place), ("mode", Mode)):
        if not isinstance(found[name], str):
            raise ValueError(f"{name} must be a text")
        found[name] = kind(found[name])
    return Order(**found)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of an order")


def _require_whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}")
