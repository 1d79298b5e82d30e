"""Which rank trains which samples in which step: a pure function of a state of a few numbers, the same on all ranks.

Step by step the job takes the next `sum(sizes)` places of the epoch's order, and rank i of these its part. What a step
takes together does not depend on how it is divided, so a resized job trains the same sequence. Nobody gives samples
out: the state is in the model's checkpoint, the only commit point, and every rank works the rest out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

Kind = Literal["sizes", "leave"]
Rule = Literal["linear", "sqrt", "keep"]
RULES: tuple[Rule, ...] = get_args(Rule)
"""How the learning rate follows the samples of a step: in proportion (Goyal et al., 2017), by their root, or not."""
MOST_RANKS, MOST_SAMPLES = 1 << 16, 1 << 32
"""A plan of more ranks, or of more samples a step, is refused: no job is so large."""
MOST_BATCHES, LONGEST_US = 1 << 16, 3_600_000_000
"""So is one of more batches a step, or of a longer deadline."""
Span = tuple[int, int]
"""Places [begin, end) of an epoch's order."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What holds from a step on; the newest version that was heard wins."""

    version: int
    from_step: int
    """Of the job, counted from 0 over all epochs."""
    sizes: tuple[int, ...]
    """Per rank, its samples of a step; 0 is allowed."""
    kind: Kind = "sizes"
    """`leave`: the job checkpoints after `from_step` and ends, to be started anew with these sizes."""
    batches: tuple[int, ...] = ()
    """Per rank, in how many batches it takes its samples of a step; empty where all take as many as their loop says."""
    deadline_us: int = 0
    """Whoever computes longer in a step leaves the rest of its batches for a later one; 0 where nobody does."""
    learning_rate: Rule = "linear"
    """How the learning rate follows a step of other samples than the job's own."""
    claims: bool = False
    """Whether ranks claim their samples while a step runs, in place of these sizes, batches and the deadline."""

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
        """Raise ValueError where that is no plan: a file or a datagram can hold anything."""
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
    """One step of the whole job: which places of the epoch's order it takes, and how they are divided."""

    step: int
    epoch: int
    spans: tuple[Span, ...]
    """The step's places: what earlier steps left undone, then the next ones of the order."""
    sizes: tuple[int, ...]
    """Per rank; smaller in an epoch's last step."""
    batches: tuple[int, ...] = ()
    """As the plan has them."""

    @property
    def samples(self) -> int:
        """Of all ranks."""
        return sum(self.sizes)

    def places(self, rank: int, begin: int = 0, end: int | None = None) -> tuple[range, ...]:
        """Those of one rank, from its `begin`-th to before its `end`-th."""
        first = sum(self.sizes[:rank])
        last = first + (self.sizes[rank] if end is None else end)
        return self.cut(first + begin, last)

    def cut(self, begin: int, end: int) -> tuple[range, ...]:
        """Return the step's places from the `begin`-th to before the `end`-th, of all ranks."""
        return _cut(self.spans, begin, end)

    def weight(self, rank: int) -> float:
        """Return what the rank's gradient of a mean loss counts when all ranks' are averaged: W · n / N."""
        return len(self.sizes) * self.sizes[rank] / self.samples

    def undone(self, done: Sequence[int]) -> tuple[Span, ...]:
        """Return the places that ranks left out which trained the first `done` of theirs each."""
        left = (self.places(rank, count) for rank, count in enumerate(done))
        return tuple((one.start, one.stop) for ranges in left for one in ranges)


@dataclass(frozen=True, slots=True)
class State:
    """Where the job's data stands, before `step` was taken: all that a checkpoint keeps of it."""

    seed: int
    epoch: int
    offset: int
    """The first place of the epoch's order that was not taken."""
    step: int
    plan: Plan
    """In force."""
    coming: tuple[Plan, ...] = ()
    """Heard, and not in force yet, in the order of their steps."""
    owed: tuple[tuple[int, Span], ...] = ()
    """What steps of this epoch left undone, each from a step on: no epoch ends before."""
    batch: int = 0
    """Samples a step that the job's own learning rate is for: those of its first plan."""

    def __post_init__(self) -> None:
        if not self.batch:
            object.__setattr__(self, "batch", sum(self.plan.sizes))

    def rate_factor(self, plan: Plan) -> float:
        """Return what the job's learning rate is multiplied by while a plan is in force; 1 at the job's own batch."""
        ratio = sum(plan.sizes) / self.batch
        factors: dict[Rule, float] = {"linear": ratio, "sqrt": math.sqrt(ratio), "keep": 1.0}
        return factors[plan.learning_rate]

    @property
    def newest_version(self) -> int:
        """Of the plans that were heard."""
        return max(one.version for one in (self.plan, *self.coming))

    def heard(self, plan: Plan) -> "State":
        """With a newer plan, which replaces those that were to come at its step and later."""
        if plan.version <= self.newest_version:
            return self
        earlier = tuple(one for one in self.coming if one.from_step < plan.from_step)
        return replace(self, coming=(*earlier, plan))

    def next(self, samples: int) -> tuple[Share, "State"]:
        """Return the step that is due, of an epoch of so many samples, and the state after it."""
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
        """Return (what is owed in this step, what remains so)."""
        due, left, step = list[Span](), list[tuple[int, Span]](), self.step
        if self.owed and self.offset >= samples:  # a step is of something, however soon other ranks came here
            step = max(step, min(from_step for from_step, _ in self.owed))
        for from_step, (begin, end) in self.owed:
            middle = begin + (min(end - begin, most) if from_step <= step else 0)
            most -= middle - begin
            due += [(begin, middle)] * (middle > begin)
            left += [(from_step, (middle, end))] * (end > middle)
        return tuple(due), tuple(left)

    def owes(self, spans: Sequence[Span], from_step: int, share: Share, samples: int) -> "State":
        """With what a step left undone: the step's epoch goes on where it was over."""
        if not spans:
            return self
        owed = (*self.owed, *((from_step, span) for span in spans))
        is_over = self.epoch != share.epoch
        return replace(self, epoch=share.epoch, offset=samples if is_over else self.offset, owed=owed)

    def leaves_after(self, step: int) -> bool:
        """Whether a plan that was heard orders to checkpoint after that step and end."""
        return any(one.kind == "leave" and one.from_step == step for one in (self.plan, *self.coming))

    def for_ranks(self, count: int) -> "State":
        """Return the same position for another number of ranks: the samples of a step are divided evenly."""
        if len(self.plan.sizes) == count:
            return self
        even = divided(sum(self.plan.sizes), (1,) * count)
        kept = {name: getattr(self.plan, name) for name in ("deadline_us", "learning_rate", "claims")}
        return replace(self, plan=Plan(self.newest_version, self.step, even, **kept), coming=())

    def as_json(self) -> dict[str, Any]:
        """For a checkpoint: plain numbers and lists."""
        position = {"seed": self.seed, "epoch": self.epoch, "offset": self.offset, "step": self.step}
        position |= {"batch": self.batch}
        plans = {"plan": self.plan.as_json(), "coming": [one.as_json() for one in self.coming]}
        return {**position, **plans, "owed": [[from_step, *span] for from_step, span in self.owed]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "State":
        """Raise ValueError where that is no state."""
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
    """`total` in proportion to the shares, by the largest remainder; equal remainders go to the first."""
    whole = sum(shares)
    sizes = [total * share // whole for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda at: -(total * shares[at] % whole))
    for at in by_remainder[: total - sum(sizes)]:
        sizes[at] += 1
    return tuple(sizes)


@lru_cache(maxsize=64)  # the loader asks four times for a step's
def _cut(spans: tuple[Span, ...], first: int, last: int) -> tuple[range, ...]:
    """Return the `first`-th to before the `last`-th of the spans' places."""
    cut = list[range]()
    for begin, end in spans:
        one = range(begin + max(first, 0), begin + min(last, end - begin))
        cut += [one] * bool(one)
        first, last = first - (end - begin), last - (end - begin)
    return tuple(cut)
