"""The loader of a job whose batches may be uneven: a DataLoader inside, plans and weights around it.

    loader = kair_mitigate.loader(dataset, batch_size=16, seed=7, num_workers=4)
    loader.load_state_dict(checkpoint["kair"])
    for x, y in loader:
        loss = criterion(model(x), y); loss.backward(); optimizer.step(); optimizer.zero_grad()
        if loader.should_checkpoint():
            save(..., kair=loader.state_dict())

It is no DataLoader itself: libraries that shard every DataLoader over the ranks once more leave it alone.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, default_collate

from kair_mitigate import control, gradients, restarts
from kair_mitigate.control import Control
from kair_mitigate.job_state import StateWriter
from kair_mitigate.permutation import Permutation
from kair_mitigate.plans import Plan, Share, State, divided
from kair_mitigate.poison import Batch, Guarded, collated
from kair_mitigate.trained import TrainedLog

GHOSTS = 2
"""A rank without samples in a step trains so many with weight 0: batches of 0 and 1 are compiled apart, and BatchNorm
fails at them."""
DRAWN_AHEAD = 32
"""Steps whose samples are drawn from the order at one go: it costs a third of a millisecond however many they are."""
_OURS = ("batch_sampler", "sampler", "shuffle", "drop_last", "batch_size")


class Loader:
    """Batches of this rank, each with its weight in force while it is trained; one pass of a loop is one epoch."""

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        seed: int = 0,
        *,
        accumulate: int = 1,
        tokens: Callable[[Any], int] | None = None,
        model: torch.nn.Module | None = None,
        weigh: bool = True,
        **options: Any,  # noqa: ANN401 (DataLoader's own)
    ) -> None:
        """Of all ranks at the same place of the program, after the process group was made.

        `batch_size` is what a rank takes in a step while sizes are even. A job that adds up the gradients of
        `accumulate` batches, and divides by that, gets as many of each step, in a row. Where losses are means over
        tokens, `tokens` tells a batch's: all ranks then meet in every step. A `model` is looked through for what no
        weight makes exact. Without `weigh` gradients are left alone. `options` are DataLoader's. Raises ValueError for
        sizes that are none, and TypeError for options that would choose other samples.
        """
        if batch_size < 1 or accumulate < 1 or batch_size < accumulate:
            raise ValueError(f"a rank cannot take {batch_size} samples a step in {accumulate} batches")
        if mine := [name for name in _OURS if name in options]:
            raise TypeError(f"{mine[0]} chooses samples, which the plan does")
        self.rank: int = dist.get_rank() if dist.is_initialized() else 0
        self.ranks: int = dist.get_world_size() if dist.is_initialized() else 1
        self.accumulate, self._tokens, self._weigh = accumulate, tokens, weigh
        self._samples = len(dataset)
        self._state = State(seed, 0, 0, 0, Plan(0, 0, (batch_size,) * self.ranks))
        self._ahead = self._state
        self._order: tuple[int, Permutation] | None = None
        self._drawn: dict[range, list[int]] = {}
        self._trained: list[int] = []
        self._is_last = False
        self.has_left = False
        """Whether the job ends here, as ordered: the loop has no more batches."""
        self.last: Share | None = None
        """The step whose batch was handed out last."""
        self._folder = restarts.run_folder()
        if self._folder is not None:
            restarts.die_with_parent()
        meets = self._folder is not None or tokens is not None
        self._control = Control(self._folder) if meets and dist.is_initialized() else None
        self._told: StateWriter | None = None
        if self._folder is not None and self.rank == 0:
            self._told = StateWriter(self._folder, restarts.attempt())
        self._log = TrainedLog.of_run(self._folder, self.rank, restarts.generation())
        collate = options.pop("collate_fn", None) or default_collate
        self._batches = DataLoader(
            Guarded(dataset), batch_sampler=_Sampler(self), collate_fn=collated(collate), **options
        )
        if model is not None:
            _warn_of(model)

    @property
    def step(self) -> int:
        """The step of the job that is due next."""
        return self._state.step

    @property
    def epoch(self) -> int:
        """The epoch that the next pass continues, or begins."""
        return self._state.epoch

    def state_dict(self) -> dict[str, Any]:
        """For the model's checkpoint: where the data stands after the last batch that was handed out."""
        return self._state.as_json()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint, also with another number of ranks. Raises ValueError where it has no state."""
        self._state, self._order = State.from_json(state).for_ranks(self.ranks), None

    def should_checkpoint(self) -> bool:
        """Whether a checkpoint is ordered after this batch, at which the loop then ends; the same on all ranks."""
        return self._is_last and self._state.leaves_after(self._state.step - 1)

    def __len__(self) -> int:
        """How many batches a whole epoch has by the plan in force."""
        return -(-self._samples // sum(self._state.plan.sizes)) * self.accumulate

    def __iter__(self) -> Iterator[Any]:
        if self.has_left:
            return
        self._hear()
        epoch, self._ahead = self._state.epoch, self._state
        # Workers fetch as soon as they are there: a plan is asked for after that, and heard before.
        batches = iter(self._batches)
        try:
            while self._state.epoch == epoch and not self.has_left:
                self._hear()
                self._ask()
                yield from self._one_step(batches)
                if self._state.leaves_after(self._state.step - 1):
                    self._leave()
        finally:
            gradients.weigh(None)

    def _one_step(self, batches: Iterator[Any]) -> Iterator[Any]:
        taken = [next(batches) for _ in range(self.accumulate)]
        share, after = self._state.next(self._samples)
        weights, self.last = self._weights(share, taken), share
        for at, (batch, weight) in enumerate(zip(taken, weights, strict=True)):
            self._is_last = at == self.accumulate - 1
            if self._is_last:
                self._state = after
                self._log.write(share, self.rank, [sample for one in taken for sample in one.poisoned])
            _mark_dynamic(batch.data)
            if self._weigh:
                gradients.weigh(weight)
            yield batch.data

    def _weights(self, share: Share, taken: Sequence[Batch]) -> list[float]:
        """Of each batch: what it has of the step's samples, or tokens, times how many are averaged or divided by."""
        parts = divided(share.sizes[self.rank], (1,) * self.accumulate)
        whole, counts = share.samples, [float(part) for part in parts]
        if self._tokens is not None:
            counts = [self._tokens(batch.data) * (part > 0) for batch, part in zip(taken, parts, strict=True)]
            total = torch.tensor([float(sum(counts))], dtype=torch.float64)
            if self._control is not None and not self._control.all_reduce(total, dist.ReduceOp.SUM):
                total *= self.ranks  # nobody knows the others': as many as here
            whole = max(total.item(), 1.0)
        return [self.ranks * self.accumulate * count / whole for count in counts]

    def _hear(self) -> None:
        """Takes the plan, if there is one, that all ranks asked for before the last step."""
        if self._control is not None and self._control.has_asked:
            plan = self._control.answer()
            if plan is not None:
                self._state, self._ahead = self._state.heard(plan), self._ahead.heard(plan)

    def _ask(self) -> None:
        if self._folder is None or self._state.step % control.EVERY:
            return
        if self._told is not None:
            self._told.write(self._state, self._samples, self._ahead.step - self._state.step)
        if self._control is not None:
            newest = max(plan.version for plan in (self._state.plan, *self._state.coming))
            self._control.ask(self._ahead.step, newest)

    def _leave(self) -> None:
        self.has_left = True
        if self._control is not None:
            self._control.all_reduce(torch.zeros(1), dist.ReduceOp.SUM)  # all have their checkpoint
        if self.rank == 0:
            restarts.say_left(self._state.step - 1)

    def next_indices(self) -> Iterator[list[int]]:
        """The samples of this rank's batches, from the state on to the epoch's end, a step ahead of what is trained."""
        epoch = self._ahead.epoch
        while self._ahead.epoch == epoch:
            before = self._ahead
            share, self._ahead = before.next(self._samples)
            if self._order is None or self._order[0] != epoch:
                self._order, self._drawn = (epoch, Permutation(self._samples, before.seed, epoch)), {}
            if share.places(self.rank) not in self._drawn:
                self._draw(self._order[1], before)
            mine, begin = self._drawn.pop(share.places(self.rank)), 0
            # A rank that had none yet takes the epoch's first ones.
            ghosts = self._trained[:GHOSTS] or self._order[1].of(range(min(GHOSTS, self._samples)))
            for size in divided(len(mine), (1,) * self.accumulate):
                yield mine[begin : begin + size] or ghosts
                begin += size
            self._trained = mine or self._trained

    def _draw(self, order: Permutation, state: State) -> None:
        """The samples of this rank's next steps as the plans are now."""
        upcoming, epoch = list[range](), state.epoch
        while len(upcoming) < DRAWN_AHEAD and state.epoch == epoch:
            share, state = state.next(self._samples)
            upcoming.append(share.places(self.rank))
        samples, begin = order.of(*upcoming), 0
        self._drawn = {}
        for places in upcoming:
            self._drawn[places] = samples[begin : begin + len(places)]
            begin += len(places)


class _Sampler(torch.utils.data.Sampler[list[int]]):  # type: ignore[misc]  # torch's types are not looked at
    """What the DataLoader inside asks for samples."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        return self._loader.next_indices()

    def __len__(self) -> int:
        return len(self._loader)


def _mark_dynamic(batch: Any) -> None:  # noqa: ANN401 (whatever a data set holds)
    """Tells torch.compile, where a job uses it, that batches differ in size: else each new size compiles anew."""
    if "torch._dynamo" not in sys.modules:
        return
    values = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else [batch]
    for one in values:
        if isinstance(one, torch.Tensor) and one.dim() and one.shape[0] >= GHOSTS:
            torch._dynamo.mark_dynamic(one, 0)


def _warn_of(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and not isinstance(module, torch.nn.SyncBatchNorm):
            warnings.warn(
                f"kair: {name or 'the model'} is a BatchNorm of each rank's own batch: no weight makes that exact",
                RuntimeWarning,
                stacklevel=3,
            )
            return
