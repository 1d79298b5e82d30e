"""Lets ranks claim their samples during a step, from a counter in the process group's store.

Each rank's first two parts of a step follow from speeds that all ranks know. Every other part comes from the counter,
which gives each part once, whatever ranks assume of each other; the rank believed to be fastest takes parts until none
is left. DDP must know that a batch is a rank's last when it begins. So each part is requested two batches before it is
trained, and the answer arrives during a batch: no rank waits for the store.
"""

import contextlib
import secrets
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property

import torch
import torch.distributed as dist

from kair_mitigate.control import Control
from kair_mitigate.guide import SUDDEN, Guide, Span, evened, is_alike, next_speeds
from kair_mitigate.plans import Share

FAILED = -1.0
"""Speed that a rank reports after a failed claim: from the next step on no rank claims."""


class Claims:
    """One rank's claims, step by step, and its knowledge of all ranks' speeds."""

    def __init__(self, rank: int, ranks: int, most: int, store: dist.Store, name: str) -> None:
        """`most` is the largest part in samples; `name` must be unique per job and per start of it."""
        self.rank, self.ranks, self.most, self._store, self._name = rank, ranks, most, store, name
        self.speeds: list[float] | None = None
        """Samples per second of each rank in the last step; None before the first."""
        self.shown = 0.0
        """This rank's speed in the current step; 0 before its first batch ends, FAILED once the store has failed."""
        self.base = self.counter = 0
        """The counter before the current step, and as this rank saw it last."""
        self._first_speeds = dict[int, list[float] | None]()
        self._begun_s, self._passes = 0.0, 0
        self._asking = ThreadPoolExecutor(1, "kair-claims")

    @classmethod
    def of_job(cls, control: Control, most: int) -> "Claims | None":
        """Return the claims of a job; all ranks call this at the same place. None if they do not meet."""
        # A restart in place may find the store, and the counters, of the previous start.
        number = torch.tensor([secrets.randbits(62) if control.rank == 0 else 0])
        if not control.all_reduce(number, dist.ReduceOp.SUM):
            return None
        store = dist.distributed_c10d._get_default_store()
        return cls(control.rank, control.ranks, most, store, f"kair/claims/{number.item():x}")

    def begin(self, step: int) -> None:
        """Claim from this step on with a new counter: parts claimed ahead and not trained are claimed again."""
        if self.rank == 0 and self._passes:
            with contextlib.suppress(RuntimeError):
                self._store.delete_key(self._key)
        self._passes += 1
        self.base = self.counter = 0
        self._first_speeds = dict.fromkeys((step, step + 1), self.speeds)

    def step(self, share: Share) -> "ClaimedStep":
        """Return the claims of a step, which may begin before the previous step has ended."""
        return ClaimedStep(self, share, self._first_speeds[share.step])

    def pace(self, done: int) -> None:
        """Measure this rank's speed as a batch begins, after `done` samples of the step (and after the device has done
        them).
        """
        if done and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        now = time.perf_counter()
        self._begun_s = self._begun_s if done else now
        if self.shown != FAILED:
            self.shown = done / (now - self._begun_s) if done else 0.0

    def ask(self, samples: int) -> "Future[int]":
        """Request this many samples from the counter."""
        return self._asking.submit(self._store.add, self._key, samples)

    def answer(self, asked: "Future[int]", samples: int) -> int | None:
        """Return how many samples of the step the counter gave out before these; None if the store failed."""
        try:
            self.counter = int(asked.result())
        except RuntimeError as error:
            self.shown = FAILED
            text = (str(error).splitlines() or [type(error).__name__])[0][:200]
            warnings.warn(
                f"kair: sizes are the plan's again, as the job's store failed at a claim ({text})",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        return self.counter - samples - self.base

    def end(self, step: int, speeds: Sequence[float], counters: Sequence[int]) -> None:
        """Take the speeds and counters that all ranks reported at a step's end."""
        self.speeds = next_speeds(self.speeds, speeds)
        # A rank may already fetch its first part of the next step, by the speeds of the step before.
        self._first_speeds.pop(step, None)
        self._first_speeds[step + 2] = self.speeds
        self.base = self.counter = max(counters)

    @property
    def _key(self) -> str:
        return f"{self._name}/{self._passes}"


class ClaimedStep:
    """A rank's claims of one step."""

    def __init__(self, claims: Claims, share: Share, speeds: Sequence[float] | None) -> None:
        """`speeds` are those from which all ranks compute everyone's first parts."""
        self.share, self._claims = share, claims
        forecast, self._first = self._guided(speeds).forecast()
        self.parts: list[Span] = forecast[claims.rank]
        """Ranges of the step's samples; the first is empty if earlier ranks took all."""
        self._seen = self._first
        """Samples given out, as far as this rank knows."""
        self._is_over = self._seen == share.samples
        self._asked: tuple[Future[int], int] | None = None

    def claim(self, at: int) -> None:
        """Receive the `at`-th part, if any, when the previous part begins training; request the next one."""
        if at == len(self.parts):
            self._ask()  # needed if the forecast gave this rank no second part, but it is the fastest now
            self._hear()
        if at == len(self.parts) - 1:
            self._ask()

    def _ask(self) -> None:
        if self._is_over or self._asked is not None:
            return
        claims, held = self._claims, sum(end - begin for begin, end in self.parts[-2:])
        believed = self._guide.speeds[claims.rank]
        has_changed = claims.speeds and claims.shown > 0 and not is_alike(claims.shown, believed, SUDDEN)
        speed = claims.shown if has_changed else believed
        wanted = self._guide.next(claims.rank, self.share.samples - self._seen, held, speed)
        if wanted and claims.shown != FAILED:
            self._asked = claims.ask(wanted), wanted
        else:
            self._is_over = True

    def _hear(self) -> None:
        if self._asked is None:
            return
        (asked, wanted), self._asked = self._asked, None
        before, self._is_over = self._claims.answer(asked, wanted), True
        if before is not None and (first := self._first + before) < self.share.samples:
            self._seen, self._is_over = min(first + wanted, self.share.samples), False
            self.parts.append((first, self._seen))

    @cached_property
    def _guide(self) -> Guide:
        """Return the guide by the newest speeds: the previous step is over at the first claim."""
        return self._guided(self._claims.speeds)

    def _guided(self, speeds: Sequence[float] | None) -> Guide:
        return Guide(evened(speeds or (1.0,) * self._claims.ranks), self.share.samples, self._claims.most)
