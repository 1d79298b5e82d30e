"""One step's operations as plain arrays: what the inner loops of every analysis work on."""

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from kair_engine.arrays import NONE, Bools, Ints, SmallInts, is_one_of
from kair_engine.causes import PROFILER_OVERHEADS
from kair_engine.frozen import dataclass
from kair_engine.trace.nesting import Nesting, launches, nest

# The same words and order as format.KINDS and format.PHASES, which need pyarrow (30 ms of start-up); a test
# holds them together.
KIND_NAMES = ("compute", "collective", "send", "recv", "memory", "input", "host", "sync", "gc", "scope")
PHASE_NAMES = ("forward", "backward", "optimizer", "input")
COMPUTE, COLLECTIVE, SEND, RECV, MEMORY, INPUT, HOST, SYNC, GC, SCOPE = range(len(KIND_NAMES))
STEP_SCOPE = "step"
QUEUE_FULL = "launch queue full"
INSIDE_UNKNOWN = "(inside not recorded)"


@dataclass(frozen=True)
class Operations:
    """The operations of one step on all ranks: arrays of one length, ordered by (rank, lane, start).

    `lane`, `name` and `group` are codes; `name_text`, `lane_text` and `group_text` say what they stand for.
    `kind` and `phase` index KIND_NAMES and PHASE_NAMES. NONE (−1) stands for null here, and nowhere else.
    `begin_ns` and `length_ns` are the step's own scope rows, one entry per rank of `ranks`; where hosts run ahead, its
    time on the devices. Times count from `origin_ns`, the step's earliest begin, so that they pass through float64
    without loss.
    """

    step: int
    origin_ns: int
    ranks: Ints
    begin_ns: Ints
    length_ns: Ints
    main_lane: Ints
    """The lane that carries each rank's step scope: its main thread."""
    rank: Ints
    """Position in `ranks`, not the rank's number."""
    lane: Ints
    name: Ints
    kind: SmallInts
    phase: SmallInts
    occurrence: Ints
    start_ns: Ints
    duration_ns: Ints
    group: Ints
    group_seq: Ints
    peer: Ints
    """Position in `ranks` of the other end of a send or receive, where the trace says it."""
    correlation: Ints
    name_text: Mapping[int, str]
    lane_text: Mapping[int, str]
    group_text: Mapping[int, str]
    input_bytes: Ints | None = None
    """What operators on threads are given, NONE where the shapes of that are not recorded; None: of no operation."""
    inputs: Ints | None = None
    """A code of the dimensions of what operators on threads are given, NONE where they are not recorded; None: of none.
    """
    inputs_text: Mapping[int, str] = field(default_factory=dict)
    """What those codes stand for: `2048,1408;8` of two tensors."""
    in_device_job: bool = False
    """Whether some rank has a device that these, a part of the step's ranks, need not have."""
    runs_ahead: bool = False
    """Whether the step's times are its devices', a launch queue behind the hosts that launch for them."""
    remembered: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    """What was derived from it, for whoever derives the same; None where it is not kept beyond one question."""

    def __len__(self) -> int:
        return len(self.rank)

    @cached_property
    def end_ns(self) -> Ints:
        """When each operation ended, on its rank's clock."""
        return self.start_ns + self.duration_ns

    @cached_property
    def on_stream(self) -> Bools:
        """True where the operation ran on a device's stream, False on a host's thread."""
        streams = [code for code, text in self.lane_text.items() if text.startswith("stream ")]
        return np.isin(self.lane, streams)

    @cached_property
    def lane_key(self) -> Ints:
        """One number per rank and lane."""
        return np.asarray(self.rank * (int(self.lane.max(initial=0)) + 1) + self.lane)

    @cached_property
    def communication(self) -> Bools:
        """True for collectives, sends and receives."""
        return is_one_of(self.kind, (COLLECTIVE, SEND, RECV))

    @cached_property
    def of_program(self) -> Bools:
        """True on the rank's main thread, and beside a device on those that run the backward pass.

        There other threads serve them: gloo's copy what has arrived, the data loader's pins memory.
        """
        if not len(self):
            return np.zeros(0, dtype=bool)
        of_main = self.lane == self.main_lane[self.rank]
        if not self.has_device:
            return np.asarray(of_main)
        backward = (self.phase == PHASE_NAMES.index("backward")) & ~self.on_stream & ~self.communication
        return np.asarray(of_main | np.isin(self.lane_key, np.unique(self.lane_key[backward])))

    @cached_property
    def of_side_streams(self) -> Bools:
        """True on streams that the program launches nothing on, and that carry no communication: they pace themselves.

        Copies of checkpoints and loggers run so, launched by threads of their own, or by what was not recorded. Nobody
        waits for them as far as a recording shows. Where none of a rank's launches were recorded, no stream is one.
        """
        device = np.flatnonzero(self.on_stream & (self.kind != SCOPE))
        launch = self.launch[device]
        launched = (launch != NONE) & self.of_program[launch]
        ranks = np.bincount(self.rank[device], weights=launched, minlength=len(self.ranks)) > 0
        lane = self.lane_key[device]
        lanes = int(lane.max(initial=0)) + 1
        held = np.bincount(lane, weights=launched | self.communication[device], minlength=lanes) > 0
        result = np.zeros(len(self), dtype=bool)
        result[device] = ~held[lane] & ranks[self.rank[device]]
        return result

    @cached_property
    def nesting(self) -> Nesting:
        """Which operation lies in which on the threads; scopes and communication take no part."""
        rows = np.flatnonzero(~self.on_stream & (self.kind != SCOPE) & ~self.communication)
        return nest(self.lane_key, self.start_ns, self.end_ns, rows)

    @cached_property
    def launch(self) -> Ints:
        """For every row on a stream the host row that launched it, else NONE."""
        return launches(self.rank, self.correlation, self.on_stream)

    @cached_property
    def given_by(self) -> Ints:
        """The row that tells what each is given, NONE where none does: its own, or of a kernel that of the innermost
        operator around its launch that does.
        """
        known = [of != NONE for of in (self.input_bytes, self.inputs) if of is not None]
        if not known:
            return np.full(len(self), NONE)
        tells = np.logical_or.reduce(known)
        told = np.where(tells, np.arange(len(self)), NONE)
        kernels = np.flatnonzero(self.on_stream & (self.kind == COMPUTE))
        around = self.launch[kernels]
        while (silent := (around != NONE) & ~tells[around]).any():
            around = np.where(silent, self.nesting.parent[around], around)
        told[kernels] = around
        return told

    @cached_property
    def given_bytes(self) -> Ints | None:
        """What each row is given."""
        if self.input_bytes is None:
            return None
        return np.where(self.given_by == NONE, NONE, self.input_bytes[self.given_by])

    @cached_property
    def garbage_collections(self) -> Ints:
        """The rows of kind GC."""
        return np.flatnonzero(self.kind == GC)

    @cached_property
    def of_profiler(self) -> Bools:
        """Whether each is the profiler's own work, which holds up the thread of the program that it is on."""
        codes = [code for code, text in self.name_text.items() if text in PROFILER_OVERHEADS]
        # Most recordings have none: then nobody asks which threads are the program's.
        held = is_one_of(self.name, codes) & (self.kind == HOST)
        return np.asarray(held & self.of_program) if codes else held

    @cached_property
    def queue_full(self) -> Bools:
        """Whether each is what a launch waited before it for a place in the queue to its device."""
        codes = [code for code, text in self.name_text.items() if text == QUEUE_FULL]
        return np.asarray(is_one_of(self.name, codes) & (self.kind == SYNC))

    @cached_property
    def inside_unknown(self) -> Bools:
        """Whether each is a CUDA graph of which only begin and end are recorded, and not what it waited for."""
        codes = [code for code, text in self.name_text.items() if text.endswith(INSIDE_UNKNOWN)]
        return np.asarray(is_one_of(self.name, codes) & self.on_stream)

    @cached_property
    def step_time_ns(self) -> float:
        """The step's duration: the median over ranks."""
        return float(np.median(self.length_ns)) if len(self.length_ns) else 0.0

    @cached_property
    def has_device(self) -> bool:
        """True where anything ran on a stream."""
        return self.in_device_job or bool(self.on_stream.any())

    def operator(self, row: int) -> str:
        """The operator's name of one row."""
        return self.name_text[int(self.name[row])]
