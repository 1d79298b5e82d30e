"""Makes a job of many operations, in the engine's own format, with one slow rank that is known.

    python benchmarks/make_big_table.py FOLDER --ranks 64 --steps 20 --operations 7800

Every rank runs the same program on one GPU: operators on its main thread launch kernels on a stream, well ahead
of it, and every 12th (or as few as are asked for) is a collective that all ranks leave together. The slow rank's
kernels take longer by the same share, and all others wait for it.
"""

import argparse
from collections import Counter
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kair_engine.recording.job_file import JobFile, KeptFragment, write_job_file
from kair_engine.recording.kept_files import checksum_of
from kair_engine.trace.files import OWN
from kair_engine.trace.format import SCHEMA, STEP_SCOPE, write_fragment
from kair_engine.trace.model import FragmentInfo, StepTimes

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

RANKS_PER_HOST = 8
LAUNCHES_PER_COLLECTIVE = 12
KERNEL_NS, NOISE = 60_000, 0.03
PACE_NS = 20_000
"""From one launch to the next: a third of a kernel, so that no device waits for its host."""
INPUT_NS, TRANSFER_NS, TAIL_NS, BETWEEN_STEPS_NS = 300_000, 80_000, 20_000, 1_000_000
EPOCH_NS = 1_790_000_000 * 10**9
NESTED = ((0.0, 0.9), (0.05, 0.1), (0.2, 0.65), (0.3, 0.4))
"""An operator, two operators inside of it, and in the second its launch: begin and duration, shares of the pace."""
ROWS_PER_LAUNCH = len(NESTED) + 1
OPERATORS = ("mm", "add", "addmm", "mean", "copy_", "mul", "native_layer_norm", "_flash_attention", "gelu")
KERNEL_NAME = "void at::native::{}_kernel<4, at::native::CUDAFunctor<c10::Half>, std::array<char*, 3ul>>"
COLLECTIVE_NAME = "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class Row:
    """An operation that every rank runs in every step; `part` indexes NESTED, and is None off the main thread."""

    name: str
    kind: str
    phase: str | None
    launch: int | None = None
    part: int | None = None


@dataclass(frozen=True)
class Program:
    """What every rank runs: its rows in the table's order (collectives, kernels, main thread), and its launches."""

    rows: tuple[Row, ...]
    collective: Bools
    """Per launch."""
    columns: dict[str, pa.Array]
    """Those that do not differ between ranks and steps."""


@dataclass(frozen=True)
class Timeline:
    """When the steps begin and how long they take, and within them the collectives' ends."""

    begin_ns: Ints
    length_ns: Ints
    collective_end_ns: Floats
    """(steps × collectives), from the step's begin."""


def make_big_table(
    folder: Path,
    *,
    ranks: int,
    steps: int,
    operations: int,
    slow_rank: int,
    slowdown: float,
    ranks_per_file: int = 1,
    steps_per_file: int | None = None,
    collectives: int | None = None,
    seed: int = 0,
) -> int:
    """Writes the job folder and returns how many operations it holds.

    Of `operations`, of a rank in a step, `collectives` are some (None: every 12th launch). A file holds
    `ranks_per_file` ranks and `steps_per_file` steps (all for None), with a row group for each step of each rank.
    """
    launches = max(operations // ROWS_PER_LAUNCH, LAUNCHES_PER_COLLECTIVE)
    program = make_program(launches, launches // collectives if collectives else LAUNCHES_PER_COLLECTIVE)
    slow = np.ones(ranks)
    slow[slow_rank] = slowdown
    timeline = make_timeline(program, steps, slow, seed)
    (folder / "fragments").mkdir(parents=True)
    fragments = []
    for first, begin in product(range(0, ranks, ranks_per_file), range(0, steps, steps_per_file or steps)):
        members = range(first, min(first + ranks_per_file, ranks))
        held = range(begin, min(begin + (steps_per_file or steps), steps))
        info = _info(members, held, ranks, timeline, len(program.rows))
        path = f"fragments/ranks-{first:05}-steps-{begin:05}.parquet"
        tables = (
            _table(program, timeline, step, rank, kernel_times(program, slow, step, rank, seed))
            for step in held
            for rank in members
        )
        write_fragment(folder / path, tables, msgspec.to_builtins(info, str_keys=True))
        fragments.append(KeptFragment(path, checksum_of(folder / path), info))
    job = JobFile(folder.name, "2026-01-01T00:00:00+00:00", "made", "fragments", tuple(fragments), ())
    write_job_file(folder, job, OWN)
    return ranks * steps * len(program.rows)


def make_program(launches: int, launches_per_collective: int = LAUNCHES_PER_COLLECTIVE) -> Program:
    """A step of this many launches, the last of them a collective."""
    collective = np.arange(1, launches + 1) % launches_per_collective == 0
    collective[-1] = True
    on_device = [_device_row(at, bool(collective[at]), launches) for at in range(launches)]
    main_thread = [
        Row(STEP_SCOPE, "scope", None),
        Row("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "input", "input"),
        *(row for at in range(launches) for row in _host_rows(at, bool(collective[at]), launches)),
    ]
    # Stable: the collectives, on a stream of their own, come first.
    rows = (*sorted(on_device, key=lambda row: row.kind != "collective"), *main_thread)
    return Program(rows, collective, _fixed_columns(rows))


def make_timeline(program: Program, steps: int, slow: Floats, seed: int) -> Timeline:
    """Lets the ranks run the steps: a collective ends for all once the last rank has arrived, and then some."""
    first_of_segment = np.flatnonzero(np.r_[True, program.collective[:-1]])
    work = np.zeros((steps, len(first_of_segment)))
    for step, rank in product(range(steps), range(len(slow))):
        # All ranks' kernels at once would be as large as the recording.
        kernel = kernel_times(program, slow, step, rank, seed)
        np.maximum(work[step], np.add.reduceat(kernel, first_of_segment), out=work[step])
    collective_end = INPUT_NS + PACE_NS + np.cumsum(work + TRANSFER_NS, axis=1)
    length = (collective_end[:, -1] + TAIL_NS).astype(np.int64)
    begin = EPOCH_NS + np.r_[0, np.cumsum(length + BETWEEN_STEPS_NS)[:-1]]
    return Timeline(begin, length, collective_end)


def kernel_times(program: Program, slow: Floats, step: int, rank: int, seed: int) -> Floats:
    """How long every launch's kernel takes, ns; 0 for collectives. The same whenever it is asked for."""
    random = np.random.default_rng((seed, step, rank))
    kernel = KERNEL_NS * slow[rank] * np.exp(random.normal(0, NOISE, len(program.collective)))
    kernel[program.collective] = 0
    return np.asarray(kernel)


def _device_row(launch: int, collective: bool, launches: int) -> Row:
    phase = _phase(launch, launches)
    if collective:
        return Row(COLLECTIVE_NAME, "collective", phase, launch)
    return Row(KERNEL_NAME.format(OPERATORS[launch % len(OPERATORS)]), "compute", phase, launch)


def _host_rows(launch: int, collective: bool, launches: int) -> list[Row]:
    operator = "c10d::allreduce_" if collective else f"aten::{OPERATORS[launch % len(OPERATORS)]}"
    names = (operator, "aten::view", f"{operator}_out", "cudaLaunchKernel")
    return [Row(name, "host", _phase(launch, launches), launch, part) for part, name in enumerate(names)]


def _phase(launch: int, launches: int) -> str:
    done = launch / launches
    return "forward" if done < 0.35 else "backward" if done < 0.95 else "optimizer"


def _fixed_columns(rows: tuple[Row, ...]) -> dict[str, pa.Array]:
    seen: Counter[tuple[str, str, str | None]] = Counter()
    occurrences = []
    for row in rows:
        occurrences.append(seen[row.name, row.kind, row.phase])
        seen[row.name, row.kind, row.phase] += 1
    grouped = [row.kind == "collective" for row in rows]
    launching = [row.part in (None, len(NESTED) - 1) for row in rows]
    return {
        "name": pa.array([row.name for row in rows]).dictionary_encode(),
        "kind": pa.array([row.kind for row in rows]).dictionary_encode(),
        "phase": pa.array([row.phase for row in rows]).dictionary_encode(),
        "occurrence": pa.array(occurrences, pa.int32()),
        "group": pa.array(["0 default_pg" if yes else None for yes in grouped]).dictionary_encode(),
        "group_seq": pa.array([row.launch if yes else None for row, yes in zip(rows, grouped, strict=True)]),
        "correlation": pa.array([row.launch if yes else None for row, yes in zip(rows, launching, strict=True)]),
    }


def _table(program: Program, timeline: Timeline, step: int, rank: int, kernel_ns: Floats) -> pa.Table:
    """One rank's rows of one step."""
    start, duration = _device_times(program, kernel_ns, timeline.collective_end_ns[step])
    device = np.argsort(~program.collective, kind="stable")
    host_start, host_duration = _host_times(len(program.collective), np.random.default_rng((1, step, rank)))
    begin = int(timeline.begin_ns[step])
    starts = np.r_[start[device], 0, 0, host_start].astype(np.int64) + begin
    durations = np.r_[duration[device], timeline.length_ns[step], INPUT_NS, host_duration].astype(np.int64)
    lanes = ["stream 20", "stream 7", f"thread {100_000 + rank}"]
    collectives = int(program.collective.sum())
    sizes = (collectives, len(device) - collectives, len(starts) - len(device))
    arrays = program.columns | {
        "step": np.full(len(starts), step, np.int32),
        "rank": np.full(len(starts), rank, np.int32),
        "lane": pa.DictionaryArray.from_arrays(np.repeat(np.arange(3, dtype=np.int32), sizes), lanes),
        "start_ns": starts,
        "duration_ns": durations,
    }
    absent = {field.name: pa.nulls(len(starts), field.type) for field in SCHEMA}
    return pa.table({name: arrays.get(name, absent[name]) for name in SCHEMA.names}).cast(SCHEMA)


def _device_times(program: Program, kernel_ns: Floats, collective_end_ns: Floats) -> tuple[Floats, Floats]:
    """Start and duration of every launch on the device: back to back, from the end of the last collective."""
    segment: Ints = np.cumsum(program.collective) - program.collective
    done_before = np.cumsum(kernel_ns) - kernel_ns
    first_of_segment = np.flatnonzero(np.r_[True, program.collective[:-1]])
    segment_begin = np.r_[INPUT_NS + PACE_NS, collective_end_ns[:-1]]
    start = segment_begin[segment] + done_before - done_before[first_of_segment][segment]
    # A kernel ends a little before the next one starts.
    duration = np.where(program.collective, collective_end_ns[segment] - start, 0.98 * kernel_ns)
    return start, duration


def _host_times(launches: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    pace = PACE_NS * np.exp(random.normal(0, NOISE, launches))
    begin = INPUT_NS + np.cumsum(pace) - pace
    share = np.array(NESTED)
    start = begin[:, None] + pace[:, None] * share[:, 0]
    return start.ravel(), (pace[:, None] * share[:, 1]).ravel()


def _info(members: range, steps: range, world: int, timeline: Timeline, rows: int) -> FragmentInfo:
    begin, length = timeline.begin_ns[list(steps)], timeline.length_ns[list(steps)]
    return FragmentInfo(
        source=f"ranks {members[0]}-{members[-1]}",
        format="kineto",
        ranks=tuple(members),
        rank_known=True,
        world_size=world,
        hosts={rank: f"node{rank // RANKS_PER_HOST}" for rank in members},
        device="made",
        has_device=True,
        absolute_time=True,
        operations=rows * len(steps) * len(members),
        layout=None,
        step_times=StepTimes(
            rank=tuple(rank for rank in members for _ in steps),
            step=tuple(steps) * len(members),
            begin_ns=tuple(begin.tolist()) * len(members),
            duration_ns=tuple(length.tolist()) * len(members),
            operations=(rows - 1,) * (len(steps) * len(members)),  # the step's own scope is none
        ),
        warnings=(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the job folder to make")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--operations", type=int, default=7800, help="per rank and step")
    parser.add_argument("--slow-rank", type=int, default=3)
    parser.add_argument("--slowdown", type=float, default=1.1, help="of the slow rank's kernels")
    parser.add_argument("--ranks-per-file", type=int, default=1)
    parser.add_argument("--steps-per-file", type=int, help="default: all")
    parser.add_argument("--collectives", type=int, help="of each rank in a step; default: every 12th launch")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    print(make_big_table(options.pop("folder"), **options), "operations")


if __name__ == "__main__":
    main()
