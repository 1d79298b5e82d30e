"""Records waits: for the data loader, and in collectives."""

import threading
from collections.abc import Callable
from typing import Any

import torch.distributed
from torch.utils.data.dataloader import _BaseDataLoaderIter

from kair_capture.job.guarding import replace
from kair_capture.job.recorder import clock
from kair_capture.job.session import Session, current
from kair_capture.job.torch_hooks.guarding import beginning_alone, guarded, is_compiling
from kair_capture.job.waiting_for_input import around_next, input_begins, input_ended
from kair_capture.ring.layout import Kind


class _Waiting(threading.local):
    depth = 0


class Waits:
    """Wrappers around the few functions in which PyTorch stands still."""

    def __init__(self, input_ended: Callable[[], None]) -> None:
        self._waiting = _Waiting()
        self._input_ended = input_ended

    def install_input(self) -> None:
        """Around a data loader's `next`."""
        replace(_BaseDataLoaderIter, "__next__", self._around_next)

    def install_collectives(self) -> None:
        """Around what waits for communication in Python. DistributedDataParallel's backward does so elsewhere."""
        if not torch.distributed.is_available():
            return
        from torch._C._distributed_c10d import Work

        replace(Work, "wait", self._around("wait"))
        # With buffers (batch norm), forward begins by this.
        replace(torch.distributed, "_broadcast_coalesced", self._around("broadcast"))

    def install_functional(self) -> None:
        """Around the wait of DTensor's and FSDP2's collectives, once their module is there."""
        from torch.distributed import _functional_collectives

        replace(_functional_collectives, "wait_tensor", self._around("wait"))

    def _around_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return around_next(original, began=beginning_alone(input_begins), ended=guarded(self._after_input))

    def _after_input(self, session: Session, begin: int) -> None:
        if input_ended(session, begin):
            self._input_ended()

    def _around(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            waited = guarded(_after_wait)

            def waiting(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
                if is_compiling() or current.session is None or self._waiting.depth:
                    return original(*args, **kwargs)
                self._waiting.depth = 1
                begin = clock()
                try:
                    return original(*args, **kwargs)
                finally:
                    self._waiting.depth = 0
                    waited(name, begin)

            return waiting

        return wrap


def _after_wait(session: Session, name: str, begin: int) -> None:
    if session.steps.concerns():
        session.recorder.span(Kind.COLLECTIVE, name, begin, clock())
