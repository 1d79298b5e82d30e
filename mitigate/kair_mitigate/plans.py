"""Which rank trains which samples in which step: a pure function of a state of a few numbers, the same on all ranks.

Step by step the job takes the next `sum(sizes)` places of the epoch's order, and rank i of these its part. What a step
takes together does not depend on how it is divided, so a resized job trains the same sequence. Nobody gives samples
out: the state is in the model's checkpoint, the only commit point, and every rank works the rest out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Kind = Literal["sizes", "leave"]
MOST_RANKS, MOST_SAMPLES = 1 << 16, 1 << 32
"""A plan of more ranks, or of more samples a step, is refused: no job is so large."""


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

    def __post_init__(self) -> None:
        if self.version < 0 or self.from_step < 0 or self.kind not in {"sizes", "leave"}:
            raise ValueError(f"no plan: version {self.version}, from step {self.from_step}, {self.kind!r}")
        if not 0 < len(self.sizes) <= MOST_RANKS or min(self.sizes) < 0 or not 0 < sum(self.sizes) <= MOST_SAMPLES:
            raise ValueError(f"no plan: sizes of {len(self.sizes)} ranks, {sum(self.sizes)} samples a step")

    def as_json(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        kind = {"version": self.version, "from_step": self.from_step, "kind": self.kind}
        return {**kind, "sizes": list(self.sizes)}

    @classmethod
    def from_json(cls, document: Any) -> "Plan":  # noqa: ANN401 (whatever was read)
        """Raises ValueError where that is no plan: a file or a datagram can hold anything."""
        try:
            numbers = [document["version"], document["from_step"], *document["sizes"]]
            kind = document["kind"]
        except (KeyError, TypeError, IndexError):
            raise ValueError("no plan: it lacks version, from_step, kind or sizes") from None
        if any(type(number) is not int for number in numbers) or not isinstance(kind, str):
            raise ValueError("no plan: its numbers are no integers")
        return cls(numbers[0], numbers[1], tuple(numbers[2:]), kind)  # type: ignore[arg-type]  # checked there


@dataclass(frozen=True, slots=True)
class Share:
    """One step of the whole job: which places of the epoch's order it takes, and how they are divided."""

    step: int
    epoch: int
    begin: int
    """The first place of the step in its epoch."""
    sizes: tuple[int, ...]
    """Per rank; smaller in an epoch's last step."""

    @property
    def samples(self) -> int:
        """Of all ranks."""
        return sum(self.sizes)

    def places(self, rank: int) -> range:
        """Those of one rank."""
        begin = self.begin + sum(self.sizes[:rank])
        return range(begin, begin + self.sizes[rank])

    def weight(self, rank: int) -> float:
        """What the rank's gradient of a mean loss counts when all ranks' are averaged: W · n / N."""
        return len(self.sizes) * self.sizes[rank] / self.samples


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

    def heard(self, plan: Plan) -> "State":
        """With a newer plan, which replaces those that were to come at its step and later."""
        if plan.version <= max(one.version for one in (self.plan, *self.coming)):
            return self
        earlier = tuple(one for one in self.coming if one.from_step < plan.from_step)
        return replace(self, coming=(*earlier, plan))

    def next(self, samples: int) -> tuple[Share, "State"]:
        """The step that is due, of an epoch of so many samples, and the state after it."""
        plan, coming = self.plan, self.coming
        while coming and coming[0].from_step <= self.step:
            plan, coming = coming[0], coming[1:]
        sizes = divided(min(sum(plan.sizes), samples - self.offset), plan.sizes)
        share = Share(self.step, self.epoch, self.offset, sizes)
        ended = self.offset + share.samples >= samples
        epoch, offset = (self.epoch + 1, 0) if ended else (self.epoch, self.offset + share.samples)
        return share, replace(self, epoch=epoch, offset=offset, step=self.step + 1, plan=plan, coming=coming)

    def leaves_after(self, step: int) -> bool:
        """Whether a plan that was heard orders to checkpoint after that step and end."""
        return any(one.kind == "leave" and one.from_step == step for one in (self.plan, *self.coming))

    def for_ranks(self, count: int) -> "State":
        """The same position for another number of ranks: the samples of a step are divided evenly."""
        if len(self.plan.sizes) == count:
            return self
        even = divided(sum(self.plan.sizes), (1,) * count)
        newest = max(one.version for one in (self.plan, *self.coming))
        return replace(self, plan=Plan(newest, self.step, even), coming=())

    def as_json(self) -> dict[str, Any]:
        """For a checkpoint: plain numbers and lists."""
        position = {"seed": self.seed, "epoch": self.epoch, "offset": self.offset, "step": self.step}
        return {**position, "plan": self.plan.as_json(), "coming": [one.as_json() for one in self.coming]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "State":
        """Raises ValueError where that is no state."""
        try:
            numbers = [document[name] for name in ("seed", "epoch", "offset", "step")]
            plan, coming = document["plan"], list(document["coming"])
        except (KeyError, TypeError):
            raise ValueError("the checkpoint has no state of the data: it lacks the keys of state_dict()") from None
        if any(type(number) is not int for number in numbers) or min(numbers[1:]) < 0:
            raise ValueError("the checkpoint has no state of the data: its position is no number")
        seed, epoch, offset, step = numbers
        return cls(seed, epoch, offset, step, Plan.from_json(plan), tuple(map(Plan.from_json, coming)))


def divided(total: int, shares: Sequence[int]) -> tuple[int, ...]:
    """`total` in proportion to the shares, by the largest remainder; equal remainders go to the first."""
    whole = sum(shares)
    sizes = [total * share // whole for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda at: -(total * shares[at] % whole))
    for at in by_remainder[: total - sum(sizes)]:
        sizes[at] += 1
    return tuple(sizes)
