"""Brings a plan to all ranks at the same step: rank 0 reads it, and all ranks meet every few steps.

They meet in their own group with CPU tensors, whatever backend the job uses. Either all ranks that meet take a plan or
none does; it starts at a step that no rank has fetched yet. If they cannot meet, training continues with the last plan.
"""

import contextlib
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from kair_mitigate import orders
from kair_mitigate.plans import RULES, Kind, Plan

EVERY = 16
"""Steps between meetings: 1 to 2 ms each are 0.1 ms per step."""
TIMEOUT_S = 60
"""A rank that waits longer for the others continues without them."""
_FETCHED_MEANWHILE = 2
"""A rank fetches fewer steps than this between a request and its answer."""
_KINDS: tuple[Kind, ...] = ("sizes", "leave")
_SIZE_BITS = 40
"""The lower bits hold a rank's samples, the upper ones its batches."""


class Control:
    """One rank's side of the meetings."""

    def __init__(self, folder: Path | None, *, timeout_s: float = TIMEOUT_S) -> None:
        """`folder` is the run's, read by rank 0 only. All ranks create this at the same point of the program."""
        self._folder = folder
        self.ranks: int = dist.get_world_size() if dist.is_initialized() else 1
        self.rank: int = dist.get_rank() if dist.is_initialized() else 0
        self._timeout_s = timeout_s
        is_alone = self.ranks == 1
        self._group = None if is_alone else dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self._seen: tuple[int, int, int] | None = None
        self._newest: Plan | None = None
        self._key = self._run_key() if folder is not None and self.rank == 0 else None
        self._asked: tuple[torch.Tensor, dist.Work | None] | None = None
        self.is_broken = False

    def ask(self, position: int, version: int) -> None:
        """Start a meeting for a plan newer than `version`; all ranks call this before the same step.

        `position` is the first step that this rank has not fetched; the plan begins after the highest one.
        """
        message = torch.zeros(5 + self.ranks, dtype=torch.int64)
        message[0] = position
        plan = self._read() if self.rank == 0 else None
        if plan is not None and plan.version > version and len(plan.sizes) == self.ranks:
            message[1:] = torch.tensor(_packed(plan))
        self._asked = self.begin(message, dist.ReduceOp.MAX)

    def begin(self, values: torch.Tensor, by: dist.ReduceOp.RedOpType) -> tuple[torch.Tensor, dist.Work | None] | None:
        """Start an all-reduce of `values`; return (values, work), or None if the ranks no longer meet."""
        try:
            if not self.is_broken:
                alone = self._group is None
                return values, None if alone else dist.all_reduce(values, op=by, group=self._group, async_op=True)
        except (RuntimeError, ValueError) as error:
            self._break(error)
        return None

    @property
    def has_asked(self) -> bool:
        """Return whether an answer is due."""
        return self._asked is not None

    def answer(self) -> Plan | None:
        """Return the plan of the last `ask`; called a step later, so that no rank waits for a late one meanwhile.

        All ranks take it or none: rank 0 never has a plan in force that the others missed.
        """
        assert self._asked is not None
        asked, self._asked = self._asked, None
        message = self.end(asked)
        if message is None:
            return None
        farthest, *packed = message.tolist()
        return _unpacked(packed, farthest + _FETCHED_MEANWHILE) if packed[0] else None

    def end(self, begun: tuple[torch.Tensor, dist.Work | None]) -> torch.Tensor | None:
        """Return the result of `begin`; None if the ranks could not meet."""
        values, work = begun
        try:
            if work is not None:
                work.wait()
        except (RuntimeError, ValueError) as error:
            self._break(error)
            return None
        return values

    def all_reduce(self, values: torch.Tensor, by: dist.ReduceOp.RedOpType) -> bool:
        """Reduce `values` in place over all ranks; return whether they met."""
        begun = self.begin(values, by)
        return begun is not None and self.end(begun) is not None

    def _break(self, error: Exception) -> None:
        self.is_broken = True
        missing = _missing(self.rank, self.ranks)
        who = f"rank {', '.join(map(str, missing))}" if missing else "the other ranks"
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        warnings.warn(
            f"kair: training goes on with the last plan: {who} did not meet within {self._timeout_s:.0f} s ({reason})",
            RuntimeWarning,
            stacklevel=4,
        )

    def _read(self) -> Plan | None:
        """Return the newest plan; the last good one if the file is unchanged, gone, damaged or forged."""
        if self._folder is None or self._key is None:
            return None
        with contextlib.suppress(OSError, ValueError):
            state = (self._folder / orders.PLAN).stat()
            seen = state.st_mtime_ns, state.st_size, state.st_ino
            if seen != self._seen:
                self._seen = seen
                self._newest = orders.read_plan(self._folder, self._key)
        return self._newest

    def _run_key(self) -> bytes | None:
        assert self._folder is not None
        try:
            return orders.read_key(self._folder)
        except orders.RunKeyError as error:
            warnings.warn(f"kair: no plan is heard: {error}", RuntimeWarning, stacklevel=3)
            return None


def _packed(plan: Plan) -> list[int]:
    """Return a plan as numbers, the same count for all plans of a job."""
    batches = plan.batches or (0,) * len(plan.sizes)
    each = [size | count << _SIZE_BITS for size, count in zip(plan.sizes, batches, strict=True)]
    kind = _KINDS.index(plan.kind) + len(_KINDS) * (RULES.index(plan.learning_rate) + len(RULES) * plan.claims)
    return [plan.version, plan.from_step, kind, plan.deadline_us, *each]


def _unpacked(numbers: Sequence[int], first: int) -> Plan:
    """Return the plan, which begins at step `first` at the earliest."""
    version, from_step, kind, deadline_us, *each = numbers
    sizes = tuple(one & (1 << _SIZE_BITS) - 1 for one in each)
    batches = tuple(one >> _SIZE_BITS for one in each) if each[0] >> _SIZE_BITS else ()
    rule, kind = divmod(kind, len(_KINDS))
    claims, rule = divmod(rule, len(RULES))
    return Plan(version, max(from_step, first), sizes, _KINDS[kind], batches, deadline_us, RULES[rule], bool(claims))


def _missing(rank: int, ranks: int) -> list[int]:
    """Return the ranks that did not notice the broken meeting, by the job's store; [] if it cannot answer."""
    with contextlib.suppress(Exception):
        store = dist.distributed_c10d._get_default_store()
        store.set(f"kair/apart/{rank}", "1")
        with contextlib.suppress(Exception):
            store.wait([f"kair/apart/{other}" for other in range(ranks)], timedelta(seconds=2))
        return [other for other in range(ranks) if not store.check([f"kair/apart/{other}"])]
    return []
