"""What capture costs a real data-parallel job: processes of DistributedDataParallel over gloo, with it and without.

    python benchmarks/capture/overhead.py                # 4 ranks, 40 rounds
    python benchmarks/capture/overhead.py --ranks 2 --rounds 10
    python benchmarks/capture/overhead.py --device cuda --width 512 --batch 64

Every round runs a block of steps in each mode, in an order drawn anew, in the same processes: `off` (a second time as
`off again`, which shows the noise); `native`, PyTorch's profiler on in every step, as in the KAIR paper's RQ1, without
the time in which it writes its trace; `level 0`; `sampled`, one step in 50 with the profiler; and `within 1 %`, at most
one step in 50 and not more than 1 % of the time, as KAIR_SAMPLE_EVERY=50 has it. Blocks of one round are compared with
each other, so that what the machine does in minutes falls out: `off again` with `off`, the others with the mean of
both, which is steadier than either. Rank 0 tells: its wall time, and its CPU time (all threads), in which others' work
on the same cores is hardly seen.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import Row, report, say

Floats = npt.NDArray[np.float64]
MODES: Final = ("off", "off again", "native", "level 0", "sampled", "within 1 %")
EVERY: Final = 50
SEED: Final = 20_26


def main() -> None:
    """Runs the ranks, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--width", type=int, default=128, help="of the transformer")
    parser.add_argument("--layers", type=int, default=4, help="of the transformer")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="of the transformer; ranks share a GPU"
    )
    parser.add_argument("--batch", type=int, default=8, help="examples of a rank's step")
    block = "steps of a block: the fewer, the more alike are those compared (a block with sampling has 50)"
    parser.add_argument("--block", type=int, default=10, help=block)
    parser.add_argument("--level-0", action="store_true", help="without sampling")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    import torch.multiprocessing

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.environ |= {"KINETO_LOG_LEVEL": "6", "GLOO_SOCKET_IFNAME": "lo", "TORCH_FR_BUFFER_SIZE": "512"}
        arguments = (options.ranks, options.rounds, options, Path(folder))
        torch.multiprocessing.start_processes(train, arguments, options.ranks, start_method="fork")  # type: ignore[no-untyped-call]
        figures = np.load(Path(folder) / "figures.npz")
        wall, cpu = ({mode: figures[mode][:, clock] for mode in modes_of(options)} for clock in (0, 1))
        notes = notes_of(figures, cpu["off"])
    rows = [*rows_of("wall", wall), *rows_of("CPU", cpu)]
    report("capture's overhead", rows, as_json=options.json, notes=notes)


def modes_of(options: argparse.Namespace) -> tuple[str, ...]:
    """Those that take part."""
    return MODES[:4] if options.level_0 else MODES


def rows_of(clock: str, times: dict[str, Floats]) -> list[Row]:
    """A row for each mode: the mean step of its blocks, and what it has more than without capture in the same round."""
    both = np.sqrt(times["off"] * times["off again"])
    rows: list[Row] = []
    for mode, values in times.items():
        more = (values / (times["off"] if mode.startswith("off") else both) - 1) * 100
        low, high = interval(more)
        rows.append(
            {
                "time": clock,
                "mode": mode,
                "step ms": round(float(np.median(values)) / 1e6, 2),
                "10 %": round(float(np.quantile(values, 0.1)) / 1e6, 2),
                "90 %": round(float(np.quantile(values, 0.9)) / 1e6, 2),
                "more than off %": round(float(np.median(more)), 2),
                "95 % from": round(low, 2),
                "to": round(high, 2),
            }
        )
    return rows


def interval(values: Floats, draws: int = 4000) -> tuple[float, float]:
    """The median's, by the bootstrap."""
    generator = np.random.default_rng(SEED)
    medians = np.median(generator.choice(values, (draws, len(values))), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return float(low), float(high)


def notes_of(figures: Mapping[str, Floats], cpu: Floats) -> list[str]:
    """The cost by counting."""
    step, hooks = float(np.median(cpu)), float(figures["hooks_ns"])

    def middle(name: str) -> float:
        return float(np.median(figures[name])) / 1e6

    lines = [
        f"by counting: {hooks / 1e3:.1f} µs CPU of hooks and records a step = {hooks / step:.3%} of its CPU",
        f"records a step: {float(figures['records']):.1f}",
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} when it was over",
    ]
    if len(figures["window_step"]):
        sampled = f"{middle('window_step'):.1f} ms; stop {middle('stop_ns'):.1f}, save {middle('save_ns'):.1f}"
        lines.insert(2, f"a sampled step: {sampled}")
    if len(figures["share"]):
        lines.insert(3, f"sampling by counting: {told(figures, 0, EVERY)}; {told(figures, 1, 'so many')}")
    return lines


def told(figures: Mapping[str, Floats], at: int, every: object) -> str:
    """Of one way to sample: one step in how many, and its share of the time."""
    return f"one step in {every} ({figures['interval'][at]:.0f}) {figures['share'][at]:.2%} of the time"


def train(rank: int, ranks: int, rounds: int, options: argparse.Namespace, folder: Path) -> None:
    """One rank. The first one keeps the figures."""
    import torch
    import torch.distributed as dist
    from torch import nn

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "KAIR_RUN_DIR": str(folder / "run")}
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=ranks)
    width, layers = options.width, options.layers
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(options.device)
    model = nn.parallel.DistributedDataParallel(encoder)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batch = torch.randn(options.batch, 32, width, device=options.device)

    def step() -> None:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if options.device == "cuda":
            torch.cuda.synchronize()

    figures = Figures(step, rank, folder, options)
    for number in range(rounds):
        figures.round(number)
        if rank == 0:
            say(f"round {number + 1} of {rounds}")
    if rank == 0:
        figures.save()
    dist.destroy_process_group()


class Figures:
    """Blocks of steps in every mode."""

    def __init__(self, step: Any, rank: int, folder: Path, options: argparse.Namespace) -> None:  # noqa: ANN401
        import kair_capture as kair
        from kair_capture.job.session import current
        from kair_capture.job.windows import Periodic

        self._step, self._rank, self._folder = step, rank, folder
        self._current = current
        kair.start(job="overhead")
        assert current.session is not None
        self._session = current.session
        self._order = random.Random(SEED)
        self._times: dict[str, list[tuple[float, float]]] = {mode: [] for mode in modes_of(options)}
        self._block = options.block
        self._periodic = (
            {} if options.level_0 else {"sampled": Periodic(EVERY, 1.0), "within 1 %": Periodic(EVERY, 0.01)}
        )
        for _ in range(10):
            step()

    def round(self, number: int) -> None:
        """One block of each mode; all ranks draw the same order."""
        import torch

        for mode in self._order.sample([*self._times], len(self._times)):
            steps = EVERY if mode in self._periodic else self._block
            self._set(mode)
            with torch.profiler.profile() if mode == "native" else nullcontext():
                self._step()
                begin, cpu = time.perf_counter_ns(), time.process_time_ns()
                for _ in range(steps):
                    self._step()
                wall, cpu = time.perf_counter_ns() - begin, time.process_time_ns() - cpu
            self._times[mode].append((wall / steps, cpu / steps))
        self._drained(number)

    def save(self) -> None:
        """Writes what was measured."""
        records, names = self._records()
        from kair_capture.ring import Kind, StepFlag

        steps = records[records["kind"] == Kind.STEP]
        sampled = steps[(steps["extra"] & StepFlag.SAMPLED) > 0]
        events = records[records["kind"] == Kind.USER_EVENT]
        texts = np.array([names.text(int(name)) for name in events["name"]])
        np.savez(
            self._folder / "figures.npz",
            window_step=sampled["value"],
            stop_ns=events["value"][texts == "window stop ns"],
            save_ns=events["value"][texts == "window save ns"],
            records=np.array((len(records) - len(events)) / len(steps)),
            interval=np.array([one.interval for one in self._periodic.values()]),
            share=np.array([one.overhead for one in self._periodic.values()]),
            hooks_ns=np.array(self._hooks_ns()),
            **{mode: np.array(values) for mode, values in self._times.items()},
        )

    def _set(self, mode: str) -> None:
        self._current.session = None if mode in {"off", "off again", "native"} else self._session
        self._session._windows._periodic = self._periodic.get(mode)

    def _drained(self, number: int) -> None:
        """What an agent does beside the job is not measured here: rings and windows are emptied between rounds."""
        if number == 0:
            self._kept: list[Any] = []
        reader = self._reader()
        self._kept.append(reader.read())
        reader.close()
        for window in (self._folder / "run" / "windows").glob(f"rank-{self._rank}-*.json"):
            window.unlink()

    def _reader(self) -> Any:  # noqa: ANN401
        from kair_capture.agent.ring_reader import RingReader

        (ring,) = (self._folder / "run").glob(f"rank-{self._rank}-*-0.ring")
        return RingReader(ring)

    def _records(self) -> tuple[Any, Any]:
        from kair_capture.ring import NameReader

        (names,) = (self._folder / "run").glob(f"rank-{self._rank}-*.names")
        return np.concatenate(self._kept), NameReader(names)

    def _hooks_ns(self, calls: int = 2000) -> float:
        """What a step's hooks take by themselves: called in a step's order with nothing in between, this thread's CPU.

        That is forward, backward with one gradient, and an optimizer of one parameter, with capture less without it.
        """
        import torch
        from torch import nn

        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        value = torch.zeros(1, 1)
        taken: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(21):
            for captures in (False, True):
                self._current.session = self._session if captures else None
                self._session._windows._periodic = None
                if turn == 0 and captures:
                    optimizer.step()  # its model is looked for once
                begin = time.thread_time_ns()
                for _ in range(calls):
                    model(value).backward()
                    optimizer.step()
                taken[captures].append((time.thread_time_ns() - begin) / calls)
            self._reader().read()
        return statistics.median(on - off for on, off in zip(taken[True], taken[False], strict=True))


if __name__ == "__main__":
    main()
