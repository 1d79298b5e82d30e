"""Decides which rank trains which samples in which step: a pure function of a small state, the same on all ranks.

Each step takes the next `sum(sizes)` positions of the epoch's order, and rank i its part of them. A step's samples do
not depend on how they are divided, so a resized job trains the same sequence. No process hands out samples: the state
is in the model's checkpoint, the only commit point, and every rank computes the rest.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

Kind = Literal["sizes", "leave"]
Rule = Literal["linear", "sqrt", "keep"]
RULES: tuple[Rule, ...] = get_args(Rule)
"""How the learning rate follows a step's samples: in proportion (Goyal et al., 2017), by their square root, or not."""
MOST_RANKS, MOST_SAMPLES = 1 << 16, 1 << 32
"""Plans with more ranks or more samples per step are refused: no job is that large."""
MOST_BATCHES, LONGEST_US = 1 << 16, 3_600_000_000
"""Plans with more batches per step or a longer deadline are refused too."""
Span = tuple[int, int]
"""Positions [begin, end) of an epoch's order."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What holds from a step on; the newest version received wins."""

    version: int
    from_step: int
    """Step of the job, counted from 0 over all epochs."""
    sizes: tuple[int, ...]
    """Samples per rank and step; 0 is allowed."""
    kind: Kind = "sizes"
    """`leave`: the job checkpoints after `from_step` and ends, to be restarted with these sizes."""
    batches: tuple[int, ...] = ()
    """Batches per rank and step; empty if all use their loop's number."""
    deadline_us: int = 0
    """A rank that computes longer in a step leaves its other batches for a later one; 0 means no deadline."""
    learning_rate: Rule = "linear"
    """How the learning rate follows a step whose samples differ from the job's own."""
    claims: bool = False
    """Whether ranks claim their samples during a step, instead of these sizes, batches and the deadline."""

    def __post_init__(self) -> None:
        if (
            self.version < 0
            or self.from_step < 0
            or self.kind not in {"sizes", "leave"}
            or self.learning_rate not in RULES
        ):
            raise ValueError(f"no plan: version {self.version}, from step {self.from_step}, {self.kind!r}")
        if not 0 < len(self.sizes) <= MOST_RANKS or min(self.sizes) < 0 or not 0 < sum(self.sizes) <= MOST_SAMPLES:
            raise ValueError(f"no plan: sizes of {len(self.sizes)} ranks, {sum(self.sizes)} samples a step")
        if self.batches and (len(self.batches) != len(self.sizes) or not 0 < min(self.batches) <= max(self.batches)):
            raise ValueError(f"no plan: batches of {len(self.batches)} ranks")
        if max(self.batches, default=1) > MOST_BATCHES or not 0 <= self.deadline_us <= LONGEST_US:
            raise ValueError(f"no plan: a deadline of {self.deadline_us} µs, {max(self.batches, default=1)} batches")

    def as_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        kind = {"version": self.version, "from_step": self.from_step, "kind": self.kind}
        sizes = {"sizes": list(self.sizes), "batches": list(self.batches)}
        shares = {"deadline_us": self.deadline_us, "learning_rate": self.learning_rate, "claims": self.claims}
        return {**kind, **sizes, **shares}

    @classmethod
    def from_json(cls, document: Any) -> "Plan":  # noqa: ANN401 (whatever was read)
        """Return the plan of a JSON value. Raises ValueError for anything else: files and datagrams are not trusted."""
        try:
            version, from_step, kind = document["version"], document["from_step"], document["kind"]
            sizes, batches = tuple(document["sizes"]), tuple(document.get("batches", ()))
            deadline_us, rule = document.get("deadline_us", 0), document.get("learning_rate", "linear")
            claims = document.get("claims", False)
        except (KeyError, TypeError, IndexError, AttributeError):
            raise ValueError("no plan: it lacks version, from_step, kind or sizes") from None
        numbers = version, from_step, deadline_us, *sizes, *batches
        if any(type(number) is not int for number in numbers) or not isinstance(kind, str) or rule not in RULES:
            raise ValueError("no plan: its numbers are no integers")
        if type(claims) is not bool:
            raise ValueError("no plan: claims is neither true nor false")
        return cls(version, from_step, sizes, kind, batches, deadline_us, rule, claims)  # type: ignore[arg-type]  # checked


@dataclass(frozen=True, slots=True)
class Share:
    """One step of the whole job: the positions of the epoch's order that it takes, and how they are divided."""

    step: int
    epoch: int
    spans: tuple[Span, ...]
    """The step's positions: those owed by earlier steps, then the next ones of the order."""
    sizes: tuple[int, ...]
    """Samples per rank; smaller in an epoch's last step."""
    batches: tuple[int, ...] = ()
    """Batches per rank, as in the plan."""

    @property
    def samples(self) -> int:
        """Return the samples of all ranks."""
        return sum(self.sizes)

    def places(self, rank: int, begin: int = 0, end: int | None = None) -> tuple[range, ...]:
        """Return the positions of one rank, from its `begin`-th to before its `end`-th."""
        first = sum(self.sizes[:rank])
        last = first + (self.sizes[rank] if end is None else end)
        return self.cut(first + begin, last)

    def cut(self, begin: int, end: int) -> tuple[range, ...]:
        """Return the step's positions from the `begin`-th to before the `end`-th, of all ranks."""
        return _cut(self.spans, begin, end)

    def weight(self, rank: int) -> float:
        """Return the weight of the rank's gradient of a mean loss in the average over ranks: W · n / N."""
        return len(self.sizes) * self.sizes[rank] / self.samples

    def undone(self, done: Sequence[int]) -> tuple[Span, ...]:
        """Return the positions left over if each rank trained only the first `done` of its own."""
        left = (self.places(rank, count) for rank, count in enumerate(done))
        return tuple((one.start, one.stop) for ranges in left for one in ranges)


@dataclass(frozen=True, slots=True)
class State:
    """Position of the job's data before `step`: everything that a checkpoint keeps of it."""

    seed: int
    epoch: int
    offset: int
    """First position of the epoch's order that was not taken."""
    step: int
    plan: Plan
    """The plan in force."""
    coming: tuple[Plan, ...] = ()
    """Plans received but not in force yet, in the order of their steps."""
    owed: tuple[tuple[int, Span], ...] = ()
    """(first step, positions) that steps of this epoch left undone; the epoch ends only after these."""
    batch: int = 0
    """Samples per step that the job's own learning rate is for: those of its first plan."""

    def __post_init__(self) -> None:
        if not self.batch:
            object.__setattr__(self, "batch", sum(self.plan.sizes))

    def rate_factor(self, plan: Plan) -> float:
        """Return the factor on the job's learning rate while a plan is in force; 1 at the job's own batch."""
        ratio = sum(plan.sizes) / self.batch
        factors: dict[Rule, float] = {"linear": ratio, "sqrt": math.sqrt(ratio), "keep": 1.0}
        return factors[plan.learning_rate]

    @property
    def newest_version(self) -> int:
        """Return the newest version of the plans received."""
        return max(one.version for one in (self.plan, *self.coming))

    def heard(self, plan: Plan) -> "State":
        """Return the state with a newer plan, which replaces coming plans from its step on."""
        if plan.version <= self.newest_version:
            return self
        earlier = tuple(one for one in self.coming if one.from_step < plan.from_step)
        return replace(self, coming=(*earlier, plan))

    def next(self, samples: int) -> tuple[Share, "State"]:
        """Return the next step of an epoch of `samples` samples, and the state after it."""
        plan, coming = self.plan, self.coming
        while coming and coming[0].from_step <= self.step:
            plan, coming = coming[0], coming[1:]
        spans, owed = self._due(sum(plan.sizes), samples)
        fresh = min(sum(plan.sizes) - sum(end - begin for begin, end in spans), samples - self.offset)
        if fresh:
            spans = (*spans, (self.offset, self.offset + fresh))
        sizes = divided(sum(end - begin for begin, end in spans), plan.sizes)
        share = Share(self.step, self.epoch, spans, sizes, plan.batches)
        ended = self.offset + fresh >= samples and not owed
        epoch, offset = (self.epoch + 1, 0) if ended else (self.epoch, self.offset + fresh)
        return share, State(self.seed, epoch, offset, self.step + 1, plan, coming, owed, self.batch)

    def _due(self, most: int, samples: int) -> tuple[tuple[Span, ...], tuple[tuple[int, Span], ...]]:
        """Return (owed positions of this step, those that remain owed)."""
        due, left, step = list[Span](), list[tuple[int, Span]](), self.step
        if self.owed and self.offset >= samples:  # a step is never empty, even if other ranks are not as far
            step = max(step, min(from_step for from_step, _ in self.owed))
        for from_step, (begin, end) in self.owed:
            middle = begin + (min(end - begin, most) if from_step <= step else 0)
            most -= middle - begin
            due += [(begin, middle)] * (middle > begin)
            left += [(from_step, (middle, end))] * (end > middle)
        return tuple(due), tuple(left)

    def owes(self, spans: Sequence[Span], from_step: int, share: Share, samples: int) -> "State":
        """Return the state with positions that a step left undone; the step's epoch continues if it was over."""
        if not spans:
            return self
        owed = (*self.owed, *((from_step, span) for span in spans))
        is_over = self.epoch != share.epoch
        return replace(self, epoch=share.epoch, offset=samples if is_over else self.offset, owed=owed)

    def leaves_after(self, step: int) -> bool:
        """Return whether a plan orders the job to checkpoint after that step and end."""
        return any(one.kind == "leave" and one.from_step == step for one in (self.plan, *self.coming))

    def for_ranks(self, count: int) -> "State":
        """Return the same position for another number of ranks, with the step's samples divided evenly."""
        if len(self.plan.sizes) == count:
            return self
        even = divided(sum(self.plan.sizes), (1,) * count)
        kept = {name: getattr(self.plan, name) for name in ("deadline_us", "learning_rate", "claims")}
        return replace(self, plan=Plan(self.newest_version, self.step, even, **kept), coming=())

    def as_json(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for a checkpoint."""
        position = {"seed": self.seed, "epoch": self.epoch, "offset": self.offset, "step": self.step}
        position |= {"batch": self.batch}
        plans = {"plan": self.plan.as_json(), "coming": [one.as_json() for one in self.coming]}
        return {**position, **plans, "owed": [[from_step, *span] for from_step, span in self.owed]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "State":
        """Return the state of a JSON object. Raises ValueError if it is not one."""
        try:
            numbers = [document[name] for name in ("seed", "epoch", "offset", "step")]
            plan, coming, batch = document["plan"], list(document["coming"]), document.get("batch", 0)
            owed = tuple((from_step, (begin, end)) for from_step, begin, end in document.get("owed", ()))
        except (KeyError, TypeError, AttributeError, ValueError):
            raise ValueError("the checkpoint has no state of the data: it lacks the keys of state_dict()") from None
        of_owed = [number for from_step, span in owed for number in (from_step, *span)]
        of_owed.append(batch)
        if any(type(number) is not int for number in numbers + of_owed) or min(numbers[1:] + of_owed) < 0:
            raise ValueError("the checkpoint has no state of the data: its position is no number")
        seed, epoch, offset, step = numbers
        return cls(seed, epoch, offset, step, Plan.from_json(plan), tuple(map(Plan.from_json, coming)), owed, batch)


def divided(total: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Return `total` divided in proportion to the shares, by largest remainder; the first of equal remainders wins."""
    whole = sum(shares)
    sizes = [total * share // whole for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda at: -(total * shares[at] % whole))
    for at in by_remainder[: total - sum(sizes)]:
        sizes[at] += 1
    return tuple(sizes)


@lru_cache(maxsize=64)  # the loader calls it four times per step
def _cut(spans: tuple[Span, ...], first: int, last: int) -> tuple[range, ...]:
    """Return the `first`-th to before the `last`-th of the spans' positions."""
    cut = list[range]()
    for begin, end in spans:
        one = range(begin + max(first, 0), begin + min(last, end - begin))
        cut += [one] * bool(one)
        first, last = first - (end - begin), last - (end - begin)
    return tuple(cut)
