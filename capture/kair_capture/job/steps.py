"""Where one step ends and the next begins, found from what the optimizers do."""

from collections.abc import Callable
from threading import get_ident
from typing import Final

from kair_capture.job.processor_time import Had, ProcessorTime
from kair_capture.job.recorder import Recorder, clock
from kair_capture.ring.layout import StepFlag

_FORGET_AFTER: Final = 64
"""Steps of the first optimizer without one of the last: it is not used any more."""


class StepTracker:
    """Cuts time into steps.

    A step is over when the last of its optimizers has run; which one that is shows in the first steps. Its end is the
    begin of whatever comes first then: waiting for data, forward, a scope. So the profiler, which is switched there,
    never cuts an optimizer's own scope in two.
    """

    def __init__(
        self, recorder: Recorder, between: Callable[[int, int, int, Had | None], bool], *, begin: int | None
    ) -> None:
        """`between(step, begin, end, had)` is called between two steps; true where it took time that is no step's.

        `had`: what the training thread had of the processor, of steps that are sampled.
        `begin` is None where the first step is under way already.
        """
        self._recorder = recorder
        self._between = between
        self._flags = 0 if begin is not None else int(StepFlag.INCOMPLETE)
        self._begin = clock() if begin is None else begin
        self._optimizers: list[int] = []
        self._since_last = 0
        self._over_since: int | None = None
        self._is_explicit = False
        self._thread: int | None = None
        self._processor: ProcessorTime | None = None
        self.in_backward = False
        """The training thread waits for autograd, whose threads may be others."""
        self.backwards = 0
        """Backward passes in the present step."""
        self.sampled = False
        """The profiler is on in the present step."""
        self.runs_ahead = False
        """The host hands steps to a device, and goes on before they are over."""

    def optimizer_ran(self, optimizer: int, *, skipped: bool = False) -> None:
        """An optimizer's step is over, or was left out."""
        if self._is_explicit:
            return
        self._thread = get_ident()
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        if skipped:
            self._flags |= StepFlag.SKIPPED
        self._since_last += 1
        if self._since_last > _FORGET_AFTER:
            self._optimizers = [optimizer]
        if optimizer == self._optimizers[-1]:
            self._over_since = clock()
            self._since_last = 0

    def phase_begins(self) -> None:
        """Something of a step begins: of the next one, where the present one is over."""
        if self._over_since is not None and get_ident() == self._thread:
            self._end(clock())

    def flag(self, flag: StepFlag) -> None:
        """Says something more of the present step."""
        self._flags |= flag

    def concerns(self) -> bool:
        """Whether what this thread waits for holds up the step: not where it saves beside it."""
        return self.in_backward or self.is_of_loop()

    def is_of_loop(self) -> bool:
        """Whether this thread trains, rather than loads ahead, as far as it is known which one does."""
        return self._thread is None or get_ident() == self._thread

    def step(self) -> None:
        """The script itself says that a step is over; from then on it alone does."""
        if not self._is_explicit:
            self._is_explicit = True
            self._thread = get_ident()
            self._optimizers.clear()
        self._end(clock())

    def watch_processor(self, *, waits_busily: bool) -> None:
        """From here on it is told what the training thread had of the processor; CPU time not where it waits busily."""
        self._processor = ProcessorTime(waits_busily=waits_busily)

    def finish(self) -> None:
        """No more steps: one whose optimizer has run is whole, but for what a device has left to do."""
        if self._over_since is not None:
            if self.runs_ahead:
                self._flags |= StepFlag.INCOMPLETE
            self._end(self._over_since)

    def _end(self, end: int) -> None:
        begin, recorder = self._begin, self._recorder
        flags = self._flags
        if self.backwards > 1:
            flags |= StepFlag.ACCUMULATING
        if self.sampled:
            flags |= StepFlag.SAMPLED
        processor = self._processor
        recorder.end_step(begin, end, flags, 0 if processor is None else processor.after_step(alone=self.sampled))
        self._over_since, self._flags, self.backwards = None, 0, 0
        paused = self._between(recorder.step, begin, end, None if processor is None else processor.alone)
        recorder.step += 1
        self._begin = end
        if paused:
            if processor is not None:
                processor.begin()
            self._begin = clock()
