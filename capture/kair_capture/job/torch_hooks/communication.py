"""Tells how a rank communicates: whom it sends to, and how often each of its process groups is used.

Ranks that communicate alike run the same program, and may be compared with one another. A few steps tell it.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import torch.distributed

from kair_capture.job.framework import Communication
from kair_capture.job.guarding import replace
from kair_capture.job.torch_hooks.guarding import is_compiling

_MOST_GROUPS: Final = 1000


class CommunicationFinder:
    """Counts from `begin` to `end`; outside of that it costs a call of two words."""

    def __init__(self) -> None:
        self._sends: set[int] = set()
        self._receives: set[int] = set()
        self._calls: dict[str, int] = {}
        self._counts = False

    def install(self) -> None:
        """Around sends and receives, which all go through a process group's."""
        if not torch.distributed.is_available():
            return
        from torch._C._distributed_c10d import ProcessGroup

        replace(ProcessGroup, "send", self._around(self._sends))
        replace(ProcessGroup, "recv", self._around(self._receives))

    def begin(self) -> None:
        """Counts from here on."""
        self._sends.clear()
        self._receives.clear()
        self._calls = _calls_so_far()
        self._counts = True

    def end(self) -> Communication:
        """What there was since."""
        self._counts = False
        sizes = {name: len(_ranks_of(group)) for name, group in _groups()}
        since = {name: count - self._calls.get(name, 0) for name, count in _calls_so_far().items()}
        groups = sorted((sizes[name], calls) for name, calls in since.items() if calls > 0)
        several = tuple((size, calls) for size, calls in groups if size > 1)
        return Communication(tuple(sorted(self._sends)), tuple(sorted(self._receives)), several)

    def _around(self, seen: set[int]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def transfer(group: Any, tensors: Any, peer: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
                if self._counts and not is_compiling():
                    self._note(seen, group, peer)
                return original(group, tensors, peer, *args, **kwargs)

            return transfer

        return wrap

    def _note(self, seen: set[int], group: object, peer: int) -> None:
        """The other end as a rank of the job; it is counted within the group."""
        with suppress(AttributeError, KeyError, StopIteration, TypeError):
            seen.add(next(rank for rank, place in _ranks_of(group).items() if place == peer))


def _calls_so_far() -> dict[str, int]:
    """How many collectives each group of this rank has had; a backend that does not count is left out.

    By its name: a group that is held here outlives its destruction, and its threads may abort a process that ends.
    """
    found: dict[str, int] = {}
    for name, group in _groups():
        try:
            found[name] = group._get_sequence_number_for_group()
        except (AttributeError, RuntimeError, TypeError):
            continue
    return found


def _groups() -> list[tuple[str, Any]]:
    names = torch.distributed.distributed_c10d._world.pg_names
    return [(str(names[group]), group) for group in list(names)[:_MOST_GROUPS]]


def _ranks_of(group: Any) -> dict[int, int]:  # noqa: ANN401
    """Rank of the job → rank in the group."""
    ranks: dict[int, int] = torch.distributed.distributed_c10d._world.pg_group_ranks[group]
    return ranks
