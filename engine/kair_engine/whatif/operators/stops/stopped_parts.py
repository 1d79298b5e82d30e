"""Tells which parts of steps stops are taken from: threads' own, or also what waits for threads that serve them."""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, is_one_of
from kair_engine.results.fix import FIX_KINDS
from kair_engine.timeline.processor_time import ProcessorTimes
from kair_engine.trace.operations import RECV, SEND, Operations
from kair_engine.whatif.model import Undisturbed
from kair_engine.whatif.operators.parts import NodeParts
from kair_engine.whatif.operators.stops.found import beyond_usual_ns, stops_ns
from kair_engine.whatif.operators.stops.measured import MeasuredStops
from kair_engine.whatif.operators.stops.ticks import LIKELY, SURELY, Ticked, ticked

LONGEST_LATENCY_NS = 100_000
"""Between a kernel's launch and its begin on a device that is free: 2 to 10 µs on an H100, at most 20."""


class StoppedParts:
    """What stops take of the parts of some steps, and other delays that no peer shows.

    Beside a device, where threads communicate (gloo's), a stop of those leaves its mark on others: on what waits for
    them, and on what devices wait for. So there a fix of stops takes from all parts but kernels, whose length is the
    device's, and sends and receives, whose length is mostly the other end's.

    Where the kernel measured what threads had of the processor, it is that which counts, and not what stops look like.
    """

    def __init__(
        self, parts: NodeParts, recorded: Sequence[Operations], processor: ProcessorTimes | None = None
    ) -> None:
        self._parts, self._recorded = parts, recorded
        self.measured = None if processor is None else MeasuredStops.of(parts, recorded, processor)

    @cached_property
    def found_ns(self) -> Floats:
        """Per part, what of it is a stop of the program's own threads, as far as measurements bear it out."""
        found = np.where(self._of(lambda ops: ops.of_profiler), 0.0, stops_ns(self._parts))
        return found if self.measured is None else self.measured.borne_out_ns(found)

    @cached_property
    def of_threads_ns(self) -> Floats:
        """Per part, what of it the program's own threads stood still: found stops, or what was measured."""
        if self.measured is None:
            return self.found_ns
        return self.measured.of_threads_ns(self._parts.value_ns, self.found_ns)

    @cached_property
    def _lost_ns(self) -> Floats:
        """The same, and what transfers lose where all threads of a process stand still at once."""
        if self.measured is None:
            return self.of_threads_ns
        return self.of_threads_ns + self.measured.of_transfers_ns(self._parts.value_ns)

    @cached_property
    def ticked(self) -> Ticked | None:
        """What of them waited for the scheduler's ticks; None where that is nothing."""
        likely = self.measured is not None and self.measured.wait_busily
        return ticked(self._parts, LIKELY if likely else SURELY)

    @cached_property
    def ns(self) -> Floats:
        """Per part, what a fix of stops takes away; where threads wait for ticks, all that may be such a wait."""
        stopped = stops_ns(self._parts, self._others) if self._served else self._lost_ns
        return stopped if self.ticked is None else np.maximum(stopped, self.ticked.value_ns)

    def disturbed_ns(self, by: Undisturbed) -> Floats:
        """Per part, what is taken away from it."""
        if by is Undisturbed.THREADS_RUN:
            return self._lost_ns
        if by is Undisturbed.ENOUGH_CORES:
            return self.of_threads_ns + self._of_communication_ns
        if by is Undisturbed.USUAL:
            return beyond_usual_ns(self._parts, self._others)
        if by is Undisturbed.UNQUEUED:
            return self._queued_ns
        return self._queued_ns + beyond_usual_ns(self._parts, self._kernels)

    @cached_property
    def _of_communication_ns(self) -> Floats:
        value = self._parts.value_ns
        return np.zeros(len(value)) if self.measured is None else self.measured.of_communication_ns(value)

    @cached_property
    def _served(self) -> bool:
        return any(ops.has_device and bool((ops.communication & ~ops.on_stream).any()) for ops in self._recorded)

    @cached_property
    def _kernels(self) -> Bools:
        parts = self._parts
        return np.asarray(parts.own & ~parts.thread & (parts.kind == FIX_KINDS.index("compute")))

    @cached_property
    def _others(self) -> Bools:
        return ~self._kernels & ~self._of(lambda ops: is_one_of(ops.kind, (SEND, RECV)))

    @cached_property
    def _queued_ns(self) -> Floats:
        """Delays of what was launched and had all it waited for, beyond what a launch takes."""
        parts = self._parts
        queued = parts.delay & self._of(lambda ops: ops.on_stream & (ops.launch != NONE) & ~ops.communication)
        return np.where(queued & (parts.value_ns > LONGEST_LATENCY_NS), parts.value_ns, 0.0)

    def _of(self, holds: Callable[[Operations], Bools]) -> Bools:
        """Per part whether its operation is one of some sort."""
        row, result = self._parts.row, np.zeros(len(self._parts.row), dtype=bool)
        for at, ops in enumerate(self._recorded):
            mine: Ints = np.flatnonzero((self._parts.step == at) & (row != NONE))
            result[mine] = holds(ops)[row[mine]]
        return result
