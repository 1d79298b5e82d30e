"""The loader of a job whose batches may be uneven: a DataLoader inside, plans and weights around it.

    loader = kair_mitigate.loader(dataset, batch_size=16, seed=7, num_workers=4)
    loader.load_state_dict(checkpoint["kair"])
    for x, y in loader:
        loss = criterion(model(x), y); loss.backward(); optimizer.step(); optimizer.zero_grad()
        if loader.should_checkpoint():
            save(..., kair=loader.state_dict())

It is not a DataLoader itself, so libraries that shard every DataLoader over the ranks leave it alone.
"""

import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, IterableDataset

from kair_mitigate import control, deadline, gradients, restarts
from kair_mitigate.claiming import FAILED, ClaimedStep, Claims
from kair_mitigate.control import Control
from kair_mitigate.deadline import LearningRate, Pace
from kair_mitigate.fetching import Fetching
from kair_mitigate.job_state import StateWriter
from kair_mitigate.permutation import Permutation
from kair_mitigate.plans import Plan, Share, Span, State, divided
from kair_mitigate.poison import Batch, Poisoned
from kair_mitigate.trained import TrainedLog

GHOSTS = 2
"""A rank without samples in a step trains this many with weight 0: batches of 0 and 1 are compiled separately, and
BatchNorm fails on them.
"""
DRAWN_AHEAD = 32
"""Steps whose samples are drawn at once: a draw costs a third of a millisecond, whatever its size."""
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
        uneven_accumulation: bool = False,
        optimizer: torch.optim.Optimizer | None = None,
        tokens: Callable[[Any], int] | None = None,
        model: torch.nn.Module | None = None,
        weigh: bool = True,
        **options: Any,  # noqa: ANN401 (DataLoader's own)
    ) -> None:
        """Create the loader on all ranks at the same place of the program, after the process group.

        `batch_size` is what a rank takes in a step while sizes are even. A job that adds up the gradients of
        `accumulate` batches, and divides by that, gets as many per step, in a row. With `uneven_accumulation`, if its
        loop uses `accumulating` and `is_last_of_step`, plans may give a rank more or fewer of them, end a step by a
        deadline, and let ranks claim samples during a step. The learning rate of the `optimizer` follows the samples of
        a step if a plan or a deadline changes these. If losses are means over tokens, `tokens` returns a batch's
        number: all ranks then meet in every step. A `model` is searched for layers that no weight makes exact. Without
        `weigh`, gradients are left alone. `options` are DataLoader's. Raises ValueError for invalid sizes, and
        TypeError for a dataset without samples by number and for options that would choose other samples.
        """
        _refuse(dataset, batch_size, accumulate, options)
        if uneven_accumulation and (tokens is not None or not weigh):
            raise ValueError("uneven_accumulation needs losses that are means over samples, and weighs them")
        self.rank: int = dist.get_rank() if dist.is_initialized() else 0
        self.ranks: int = dist.get_world_size() if dist.is_initialized() else 1
        self.accumulate, self._tokens, self._weigh = accumulate, tokens, weigh
        self._is_uneven, self._is_accumulating = uneven_accumulation, False
        self._pace = Pace()
        self._telling: tuple[torch.Tensor, dist.Work | None] | None = None
        self._must_hear = False
        self._rate = None if optimizer is None else LearningRate(optimizer)
        self._samples = len(dataset)
        self._state = State(seed, 0, 0, 0, Plan(0, 0, (batch_size,) * self.ranks))
        self._ahead = self._state
        self._order: tuple[int, Permutation] | None = None
        self._drawn: dict[tuple[range, ...], list[int]] = {}
        self._fetched: deque[tuple[int, tuple[range, ...], int]] = deque()
        self._claimed: deque[ClaimedStep] = deque()
        self._is_claiming = False
        """Whether fetched samples are claimed."""
        self._is_drawn = False
        self._trained: list[int] = []
        self.is_last_of_step = False
        """Whether the batch handed out last ends its step, so that the optimizer is next."""
        self.counted = 0
        """Samples of the last batch handed out; 0 if it does not count because the rank has none in the step."""
        self._is_leaving = False
        self.has_left = False
        """Whether the job ends here, as ordered: the loop has no more batches."""
        self.last: Share | None = None
        """The step of the batch handed out last; its sizes are the plan's, even if ranks claim others."""
        self._capture = sys.modules.get("kair_capture.job.api")
        """If capture watches this process, it receives each step's number of samples."""
        self._folder = restarts.run_folder()
        meets = self._folder is not None or tokens is not None or uneven_accumulation
        self._control = Control(self._folder) if meets else None
        self._claims: Claims | None = None
        """None if ranks cannot claim samples; the same on all ranks."""
        self._tied: str | None = None
        if uneven_accumulation and self._control is not None and self.ranks > 1:
            self._claims = Claims.of_job(self._control, -(-batch_size // accumulate))
        self._told: StateWriter | None = None
        if self._folder is not None and self.rank == 0:
            _warn_of_second()
            self._told = StateWriter(
                self._folder, restarts.attempt(), is_uneven=uneven_accumulation, has_rate=optimizer is not None
            )
        self._log = TrainedLog.of_run(self._folder, self.rank, restarts.generation())
        self._fetching = Fetching(dataset, options, self.next_indices, self.claimed_indices, self.__len__)
        if model is not None:
            _warn_of(model)

    @property
    def step(self) -> int:
        """Return the next step of the job."""
        return self._state.step

    @property
    def epoch(self) -> int:
        """Return the epoch that the next pass continues or begins."""
        return self._state.epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the data's position after the last batch handed out, for the model's checkpoint."""
        return self._state.as_json()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint, also with another number of ranks. Raises ValueError if it has no state."""
        self._state, self._order = State.from_json(state).for_ranks(self.ranks), None

    def should_checkpoint(self) -> bool:
        """Return whether a checkpoint is ordered after this batch, which ends the loop; the same on all ranks."""
        self._is_leaving = self.is_last_of_step and self._state.leaves_after(self._state.step - 1)
        return self._is_leaving

    def __len__(self) -> int:
        """Return the batches of a whole epoch by the plan in force."""
        return -(-self._samples // sum(self._state.plan.sizes)) * self.accumulate

    def __iter__(self) -> Iterator[Any]:
        if self.has_left:
            return
        self._hear()
        epoch = self._state.epoch
        # Workers fetch as soon as they exist: receive a plan before, and ask for the next one afterwards.
        batches = self._begin()
        try:
            while self._state.epoch == epoch and not self.has_left:
                self._hear()
                self._ask()
                is_left = self._is_drawn and not self._fetched and not self._claimed
                if is_left or self._claims_in(self._state) != self._is_claiming:
                    batches = self._begin()
                yield from self._claimed_step(batches) if self._is_claiming else self._one_step(batches)
                if self._state.leaves_after(self._state.step - 1):
                    self._leave()
        finally:
            gradients.weigh(None)
            if self._is_leaving and not self.has_left:  # a trainer that is stopping requests no other batch
                self._leave()

    def _begin(self) -> Iterator[Any]:
        """Fetch from the current state; again if an epoch continues with undone samples, or claims begin or end."""
        self._ahead, self._is_drawn, self._is_claiming = self._state, False, self._claims_in(self._state)
        self._fetched.clear()
        self._claimed.clear()
        if self._is_claiming and self._claims is not None:
            self._claims.begin(self._state.step)
        return self._fetching.begin(claims=self._is_claiming)

    def _claims_in(self, state: State) -> bool:
        """Return whether ranks claim their samples in the next step."""
        return self._claims is not None and state.next(self._samples)[1].plan.claims

    def _claimed_step(self, batches: Iterator[Any]) -> Iterator[Any]:
        assert self._claims is not None
        share, after = self._state.next(self._samples)
        self._follow_rate(after)
        poisoned, done, at = list[Poisoned](), 0, 0
        self.last, self.is_last_of_step = share, False
        while not self.is_last_of_step:
            self._claims.pace(done)
            batch = self._fetching.next_part(batches)
            claimed = self._claimed[0]
            if claimed.share != share:
                raise RuntimeError(f"step {claimed.share.step} was fetched where step {share.step} is trained")
            claimed.claim(at + 1)
            begin, end = claimed.parts[at]
            poisoned += batch.poisoned
            done, at = done + end - begin, at + 1
            if at == len(claimed.parts):
                self.is_last_of_step, self._state = True, after
                self._tell_done(done, self._claims.shown, self._claims.counter)
                places = [one for part in claimed.parts for one in share.cut(*part)]
                self._log.write(share, self.rank, poisoned, places)
            weight = self.ranks * self.accumulate * (end - begin) / share.samples
            yield from self._handed_out(batch, end - begin, weight, weight, at - 1)
        self._claimed.popleft()

    def _handed_out(self, batch: Batch, samples: int, weight: float, of_step: float, at: int) -> Iterator[Any]:
        """Yield the step's `at`-th batch, with this many counting samples and its weight in force."""
        _mark_dynamic(batch.data)
        self.counted = samples
        if self._capture is not None:
            self._capture.samples(samples or GHOSTS)
        if self._weigh:
            gradients.weigh(weight, of_step, continues=at > 0)
        self._is_accumulating = False
        yield batch.data if weight else gradients.without_weight(batch.data)
        if self._is_uneven and not self._is_accumulating:
            raise RuntimeError("uneven_accumulation needs `with loader.accumulating(model)` around each batch")

    def _follow_rate(self, after: State) -> None:
        if self._rate is not None:
            self._rate.factor, self._rate.share = after.rate_factor(after.plan), 1.0

    def _one_step(self, batches: Iterator[Any]) -> Iterator[Any]:
        share, after = self._state.next(self._samples)
        count, deadline_us = self._count(share), self._deadline_us(after.plan)
        self._follow_rate(after)
        taken = [next(batches) for _ in range(count)]
        if self._fetched.popleft() != (share.step, share.places(self.rank), count):
            raise RuntimeError(f"step {share.step} was fetched by another plan than it is trained by")
        weights, self.last = self._weights(share, taken), share
        parts = divided(share.sizes[self.rank], (1,) * count)
        for at, (batch, weight) in enumerate(zip(taken, weights, strict=True)):
            self.is_last_of_step = at == count - 1
            if deadline_us:
                self.is_last_of_step |= self._pace.is_last(at, deadline_us)
            if self.is_last_of_step:
                self._state, done = after, sum(parts[: at + 1])
                if deadline_us:
                    self._tell_done(done)
                poisoned = [sample for one in taken[: at + 1] for sample in one.poisoned]
                self._log.write(share, self.rank, poisoned, share.places(self.rank, 0, done))
            yield from self._handed_out(batch, parts[at], weight, sum(weights) / self.accumulate, at)
            if self.is_last_of_step:
                return

    @contextmanager
    def accumulating(self, model: DistributedDataParallel) -> Iterator[None]:
        """Wrap forward and backward of a batch: gradients are reduced at a step's last batch only, and stay exact.

        Raises TypeError if the model is not DDP's, or, while ranks claim samples, its DDP covers only some ranks: the
        others would meet at every batch.
        """
        if not isinstance(model, DistributedDataParallel):
            raise TypeError(f"{type(model).__name__} is no DistributedDataParallel: its ranks meet at every batch")
        if self._claims is not None and (joined := model.process_group.size()) < self.ranks:
            self._tied = f"ranks meet in every batch, as DDP joins {joined} of {self.ranks}: they cannot claim samples"
            if self._is_claiming:
                raise TypeError(self._tied)
            self._claims = None
        self._is_accumulating = True
        with nullcontext() if self.is_last_of_step else model.no_sync():
            yield
        if self._must_hear and self.last is not None:
            self._hear_done(model, self.last)

    def _tell_done(self, done: int, speed: float = 0.0, counter: int = 0) -> None:
        """Start sending the others this rank's samples done, its fetched steps, its counter and its speed."""
        message = torch.zeros(4, self.ranks, dtype=torch.float64)
        message[:, self.rank] = torch.tensor([done, self._ahead.step, counter, speed], dtype=torch.float64)
        assert self._control is not None
        self._telling, self._must_hear = self._control.begin(message, dist.ReduceOp.SUM), True

    def _hear_done(self, model: torch.nn.Module, share: Share) -> None:
        """Rescale the gradients to what all ranks have done; the rest is owed from a step on that no rank has fetched.

        Raises RuntimeError if ranks no longer meet: their gradients would be of different samples.
        """
        begun, self._telling, self._must_hear = self._telling, None, False
        message = None if begun is None or self._control is None else self._control.end(begun)
        if message is None:
            raise RuntimeError("the ranks did not learn from each other how many samples they have done")
        (done, fetched, counters), speeds = message[:3].long().tolist(), message[3].tolist()
        if not self._is_claiming or self._claims is None:
            undone = share.undone(done)
        else:
            self._claims.end(share.step, speeds, counters)
            undone = () if sum(done) == share.samples else self._unclaimed(share)
            if min(speeds) == FAILED:
                self._claims = None
        deadline.scale(model, share.samples / max(sum(done), 1))
        if self._rate is not None:
            self._rate.share = sum(done) / share.samples
        owed = undone, max(fetched), share, self._samples
        self._state, self._ahead = self._state.owes(*owed), self._ahead.owes(*owed)

    def _unclaimed(self, share: Share) -> tuple[Span, ...]:
        """Return the positions that no rank trained because the claims of the fastest rank failed.

        Raises RuntimeError if ranks do not meet, or have claimed a position twice.
        """
        times = torch.zeros(share.samples, dtype=torch.int64)
        for begin, end in self._claimed[0].parts:
            times[begin:end] = 1
        if self._control is None or not self._control.all_reduce(times, dist.ReduceOp.SUM) or times.max() > 1:
            raise RuntimeError(f"ranks do not agree on who has claimed which samples of step {share.step}")
        left = (one for at in (times == 0).nonzero().flatten().tolist() for one in share.cut(at, at + 1))
        return tuple((one.start, one.stop) for one in left)

    def _deadline_us(self, plan: Plan) -> int:
        """Return the longest time a rank computes in a step, in µs; 0 for no limit."""
        return plan.deadline_us if self._is_uneven and self._control is not None else 0

    def _count(self, share: Share) -> int:
        """Return the number of batches in which this rank takes its part of a step."""
        return share.batches[self.rank] if share.batches and self._is_uneven else self.accumulate

    def _weights(self, share: Share, taken: Sequence[Batch]) -> list[float]:
        """Return each batch's weight: its share of the step's samples, or tokens, times the number averaged or divided
        by.
        """
        parts = divided(share.sizes[self.rank], (1,) * len(taken))
        whole, counts = share.samples, [float(part) for part in parts]
        if self._tokens is not None:
            counts = [self._tokens(batch.data) * (part > 0) for batch, part in zip(taken, parts, strict=True)]
            total = torch.tensor([float(sum(counts))], dtype=torch.float64)
            if self._control is not None and not self._control.all_reduce(total, dist.ReduceOp.SUM):
                total *= self.ranks  # the others' are not known: assume as many as here
            whole = max(total.item(), 1.0)
        return [self.ranks * self.accumulate * count / whole for count in counts]

    def _hear(self) -> None:
        """Take the plan, if any, that all ranks asked for before the last step."""
        if self._control is not None and self._control.has_asked:
            plan = self._control.answer()
            if plan is not None:
                self._state, self._ahead = self._state.heard(plan), self._ahead.heard(plan)
                if plan.claims and self._tied is not None:
                    warnings.warn(f"kair: {self._tied}", RuntimeWarning, stacklevel=3)

    def _ask(self) -> None:
        if self._folder is None or self._state.step % control.EVERY:
            return
        if self._told is not None:
            self._told.write_soon(self._state, self._samples, self._ahead.step - self._state.step)
        if self._control is not None:
            newest = max(plan.version for plan in (self._state.plan, *self._state.coming))
            self._control.ask(self._ahead.step, newest)

    def _leave(self) -> None:
        self.has_left = True
        if self._control is not None:
            self._control.all_reduce(torch.zeros(1), dist.ReduceOp.SUM)  # wait until all ranks have their checkpoint
        if self.rank == 0:
            restarts.say_left(self._state.step - 1)

    def next_indices(self) -> Iterator[list[int]]:
        """Yield the samples of this rank's batches, from the current state to the epoch's end, a step ahead of
        training.
        """
        for share in self._drawn_steps(claims=False):
            places, count = share.places(self.rank), self._count(share)
            self._fetched.append((share.step, places, count))
            mine, begin = self._drawn.pop(places) if places else [], 0
            ghosts = self._ghosts()
            for size in divided(len(mine), (1,) * count):
                yield mine[begin : begin + size] or ghosts
                begin += size
            self._trained = mine or self._trained

    def claimed_indices(self) -> Iterator[list[int]]:
        """Claim this rank's parts of steps, and yield the samples of each in as many lists as there are workers."""
        assert self._claims is not None
        for share in self._drawn_steps(claims=True):
            claimed, at = self._claims.step(share), 0
            self._claimed.append(claimed)
            of_all = self._drawn.pop(share.cut(0, share.samples))
            while at < len(claimed.parts):
                begin, end = claimed.parts[at]
                self._trained, first = of_all[begin:end] or self._ghosts(), 0
                for size in divided(len(self._trained), (1,) * self._fetching.workers):
                    yield self._trained[first : first + size]
                    first += size
                at += 1
                claimed.claim(at)

    def _ghosts(self) -> list[int]:
        """Return samples of weight 0: the last trained ones, or the epoch's first for a rank that had none yet."""
        assert self._order is not None
        return self._trained[:GHOSTS] or self._order[1].of(range(min(GHOSTS, self._samples)))

    def _drawn_steps(self, *, claims: bool) -> Iterator[Share]:
        """Yield the epoch's steps, as long as plans have (or do not have) ranks claim their samples."""
        epoch = self._ahead.epoch
        while self._ahead.epoch == epoch:
            before, (share, after) = self._ahead, self._ahead.next(self._samples)
            if (self._claims is not None and after.plan.claims) != claims:
                break
            self._ahead = after
            if self._order is None or self._order[0] != epoch:
                self._order, self._drawn = (epoch, Permutation(self._samples, before.seed, epoch)), {}
            if (places := self._places(share)) and places not in self._drawn:
                self._draw(self._order[1], before)
            yield share
        self._is_drawn = True

    def _places(self, share: Share) -> tuple[range, ...]:
        """Return the positions of a step that this rank may train: all, if ranks claim them."""
        return share.cut(0, share.samples) if self._is_claiming else share.places(self.rank)

    def _draw(self, order: Permutation, state: State) -> None:
        """Draw the samples of the next steps' positions by the present plans."""
        upcoming, epoch = list[tuple[range, ...]](), state.epoch
        while len(upcoming) < DRAWN_AHEAD and state.epoch == epoch:
            share, state = state.next(self._samples)
            upcoming += [places] if (places := self._places(share)) else []
        samples, begin = order.of(*(one for places in upcoming for one in places)), 0
        self._drawn = {}
        for places in upcoming:
            end = begin + sum(map(len, places))
            self._drawn[places] = samples[begin:end]
            begin = end


def _refuse(dataset: Dataset[Any], batch_size: int, accumulate: int, options: Mapping[str, Any]) -> None:
    if batch_size < 1 or accumulate < 1 or batch_size < accumulate:
        raise ValueError(f"a rank cannot take {batch_size} samples a step in {accumulate} batches")
    if mine := [name for name in _OURS if name in options]:
        raise TypeError(f"kair_mitigate.loader takes no {mine[0]}: its plan chooses the samples, in an order by seed=")
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"kair_mitigate.loader needs samples by number, which {type(dataset).__name__} does not have;"
            " kair mitigate shards gives out files and streams"
        )


def _mark_dynamic(batch: Any) -> None:  # noqa: ANN401 (whatever a data set holds)
    """Inform torch.compile, if the job uses it, that batches differ in size: otherwise each new size compiles again."""
    if "torch._dynamo" not in sys.modules:
        return
    values = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else [batch]
    for one in values:
        if isinstance(one, torch.Tensor) and one.dim() and one.shape[0] >= GHOSTS:
            torch._dynamo.maybe_mark_dynamic(one, 0)  # a model that needs one size is compiled for each


def _warn_of_second() -> None:
    global _is_made  # noqa: PLW0603  # of the process
    if _is_made:
        warnings.warn(
            "kair: a second kair_mitigate.loader in one process: plans, status and audit mix them up;"
            " use a DataLoader for all but the training data",
            RuntimeWarning,
            stacklevel=4,
        )
    _is_made = True


_is_made = False


def _warn_of(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and not isinstance(module, torch.nn.SyncBatchNorm):
            warnings.warn(
                f"kair: {name or 'the model'} is a BatchNorm of each rank's own batch: no weight makes that exact",
                RuntimeWarning,
                stacklevel=3,
            )
            return
