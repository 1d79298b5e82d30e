"""Marks steps in a profiler's own recording: each a scope that is entered and left between steps."""

from contextlib import AbstractContextManager


class StepMarks:
    """Of one profile; a framework's says what its marks are."""

    _mark: AbstractContextManager[object] | None = None

    def begin_step(self, step: int) -> None:
        """Marks a step's begin."""
        self._mark = self._marked(step)
        self._mark.__enter__()

    def end_step(self) -> None:
        """Marks its end."""
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _marked(self, step: int) -> AbstractContextManager[object]:
        raise NotImplementedError
