"""Ranks claim their samples while a step runs, from a counter of the step in the process group's store.

Each rank's first part of a step is worked out from speeds that all ranks know. Every other part is what the counter
gives next: a part is taken once, whatever ranks believe of each other, and the believed fastest rank takes parts until
none is left. DDP has to know a rank's last batch as it begins, so the next part is claimed when a batch begins.
"""

import contextlib
import secrets
import time
import warnings
from collections.abc import Sequence
from functools import cached_property

import torch
import torch.distributed as dist

from kair_mitigate.control import Control
from kair_mitigate.guide import Guide, told_speeds
from kair_mitigate.plans import Share, Span

FAILED = -1.0
"""A rank tells this speed where its claim failed: from the next step on no rank claims."""


class Claims:
    """One rank's claims of a job, step by step, and what it knows of all ranks' speeds."""

    def __init__(self, rank: int, ranks: int, most: int, store: dist.Store, name: str) -> None:
        """`most` samples are in a part at most; no other job, and no earlier start of this one, has the `name`."""
        self.rank, self.ranks, self.most, self._store, self._name = rank, ranks, most, store, name
        self.speeds: list[float] | None = None
        """Samples a second of each rank, as the last step has shown them; None before one has."""
        self.shown = 0.0
        """This rank's own in the step that runs; 0 before a batch of it has ended, FAILED once the store has."""
        self._first_speeds = dict[int, list[float] | None]()
        self._begun_s, self._passes = 0.0, 0

    @classmethod
    def of_job(cls, control: Control, most: int) -> "Claims | None":
        """Make those of a job, of all ranks at the same place of the program; None where they do not meet."""
        # A restart in place may meet the store, and the counters, of the start before.
        number = torch.tensor([secrets.randbits(62) if control.rank == 0 else 0])
        if not control.all_reduce(number, dist.ReduceOp.SUM):
            return None
        store = dist.distributed_c10d._get_default_store()
        return cls(control.rank, control.ranks, most, store, f"kair/claims/{number.item():x}")

    def begin(self, step: int) -> None:
        """Claim from this step on, with new counters: what was claimed ahead and not trained is claimed again."""
        self._passes += 1
        self._first_speeds = dict.fromkeys((step, step + 1), self.speeds)

    def step(self, share: Share) -> "ClaimedStep":
        """Return the claims of a step, which may begin before the step before it has ended."""
        return ClaimedStep(self, share, self._first_speeds[share.step])

    def pace(self, done: int) -> None:
        """Take the time as a batch begins, after `done` samples of the step: on a device, once these are over."""
        if done and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        now = time.perf_counter()
        self._begun_s = self._begun_s if done else now
        if self.shown != FAILED:
            self.shown = done / (now - self._begun_s) if done else 0.0

    def add(self, step: int, samples: int) -> int | None:
        """Return where the counter of a step stood before it gave so many samples; None where the store fails."""
        try:
            return int(self._store.add(self._key(step), samples)) - samples
        except RuntimeError as error:
            self.shown = FAILED
            text = (str(error).splitlines() or [type(error).__name__])[0][:200]
            warnings.warn(
                f"kair: sizes are the plan's again, as the job's store failed at a claim ({text})",
                RuntimeWarning,
                stacklevel=2,
            )
            return None

    def end(self, step: int, told: Sequence[float]) -> None:
        """Take in what ranks have told of their speeds at a step's end; its counter goes, as all have claimed."""
        self.speeds = told_speeds(self.speeds, told)
        # A rank may fetch its first part of the next step already: it takes the speeds of the step before for it.
        self._first_speeds.pop(step, None)
        self._first_speeds[step + 2] = self.speeds
        if self.rank == 0:
            with contextlib.suppress(RuntimeError):
                self._store.delete_key(self._key(step))

    def _key(self, step: int) -> str:
        return f"{self._name}/{self._passes}/{step}"


class ClaimedStep:
    """What a rank has claimed of one step."""

    def __init__(self, claims: Claims, share: Share, speeds: Sequence[float] | None) -> None:
        """`speeds` are those by which all ranks work out everyone's first part."""
        self.share, self._claims = share, claims
        ends = Guide(speeds or (1.0,) * claims.ranks, share.samples, claims.most).first_ends
        self.parts: list[Span] = [(ends[claims.rank - 1] if claims.rank else 0, ends[claims.rank])]
        """Of the step's places; the first one is empty where the ranks before have taken all."""
        self._first = self._seen = ends[-1]
        """Where the counter begins, and where it was seen last."""
        self._is_over = False

    def claim(self, at: int) -> None:
        """Claim the `at`-th part, as the one before begins, unless that is done; or leave the rest to others."""
        if at < len(self.parts) or self._is_over:
            return
        claims, left, (begin, end) = self._claims, self.share.samples - self._seen, self.parts[-1]
        believed = self._guide.speeds[claims.rank]
        speed = believed if claims.speeds is None else claims.shown or believed
        wanted = self._guide.next(claims.rank, left, end - begin, speed)
        before = claims.add(self.share.step, wanted) if wanted else None
        if before is not None:
            first = self._first + before
            self._seen = min(first + wanted, self.share.samples)
            if first < self._seen:
                self.parts.append((first, self._seen))
                return
        self._is_over = True

    @cached_property
    def _guide(self) -> Guide:
        """By the newest speeds: the step before is over by the first claim."""
        speeds = self._claims.speeds or (1.0,) * self._claims.ranks
        return Guide(speeds, self.share.samples, self._claims.most)
