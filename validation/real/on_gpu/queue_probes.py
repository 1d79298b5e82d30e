"""How many launches a GPU's queue takes before a launch call blocks, what counts, and when the call goes on.

Each probe holds the device up by a kernel that spins, then launches until a call does not return at once. The
calls return while the device is held up, so the number of those before the one that blocks is the queue's depth. Which
places count (streams, events, copies, graphs) is told by probes that launch by turns; whether a blocked call goes on
when one place is free or when many are by a queue of kernels that are each long.
"""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from on_gpu.accelerator import Cuda

Launch = Callable[[], object]

HELD_MS: Final = 150.0
BLOCKED_MS: Final = 20.0
"""A call that is longer met a full queue: it lasts until the device goes on."""
LONG_US: Final = 100.0
MOST_CALLS: Final = 12_000
LONG_CALLS_TOLD: Final = 12
LINKS_OF_A_GRAPH: Final = (10, 100, 500)


@dataclass(frozen=True)
class Filled:
    """What filling the queue showed."""

    before_blocked: int | None
    """Calls that returned at once; None where none blocked."""
    blocked_ms: float
    calls: int
    usual_us: float
    long_calls: tuple[tuple[int, float], ...]
    """Places and microseconds of the first calls that were longer than LONG_US."""


def filled(took_ns: Sequence[int]) -> Filled:
    """What the durations of calls, one after another, tell."""
    blocked = next((place for place, took in enumerate(took_ns) if took > 1e6 * BLOCKED_MS), None)
    long = [(place, round(took / 1000, 1)) for place, took in enumerate(took_ns) if took > 1000 * LONG_US]
    return Filled(
        before_blocked=blocked,
        blocked_ms=0.0 if blocked is None else round(took_ns[blocked] / 1e6, 2),
        calls=len(took_ns),
        usual_us=round(statistics.median(took_ns) / 1000, 2),
        long_calls=tuple(long[:LONG_CALLS_TOLD]),
    )


def fill(hold: Launch, launch: Callable[[int], object], release: Launch, most: int = MOST_CALLS) -> Filled:
    """Launch until a call blocks, a device that is held up; `launch` is given the number of the call."""
    release()
    took: list[int] = []
    with no_collections():
        hold()
        began = time.perf_counter_ns()
        for place in range(most):
            begin = time.perf_counter_ns()
            launch(place)
            took.append(time.perf_counter_ns() - begin)
            # What returned after the device went on tells nothing.
            if took[-1] > 1e6 * BLOCKED_MS or time.perf_counter_ns() - began > 0.85e6 * HELD_MS:
                break
    release()
    return filled(took)


def drained(took_ns: Sequence[int], began_ns: Sequence[int], kernel_us: float) -> dict[str, Any]:
    """Of launches of kernels that are each so long: which blocked, for how long, and how many places were free then."""
    usual = statistics.median(sorted(took_ns)[: len(took_ns) // 4])
    blocked = [place for place, took in enumerate(took_ns) if took > max(4 * usual, 20_000)]
    runs = [after - before - 1 for before, after in pairwise(blocked)]
    first = began_ns[0]
    return {
        "kernel_us": round(kernel_us, 2),
        "usual_us": round(usual / 1000, 2),
        "blocked": len(blocked),
        "first_blocked": blocked[0] if blocked else None,
        "calls_between_blocked": sorted_shares(runs),
        "blocked_us": sorted_shares([round(took_ns[place] / 1000, 1) for place in blocked]),
        # Launches that had returned less kernels that were over, when a blocked call returned.
        "ahead_at_return": sorted_shares(
            [place + 1 - int((began_ns[place] + took_ns[place] - first) / 1000 / kernel_us) for place in blocked]
        ),
        "some": [
            [place, round((began_ns[place] - first) / 1000, 1), round(took_ns[place] / 1000, 1)]
            for place in blocked[:150]
        ],
    }


def sorted_shares(values: Sequence[float]) -> dict[str, float]:
    """The least, the greatest, and some between."""
    if not values:
        return {}
    ordered = sorted(values)
    return {
        name: ordered[min(len(ordered) - 1, int(share * len(ordered)))]
        for name, share in (("min", 0.0), ("p10", 0.1), ("median", 0.5), ("p90", 0.9), ("max", 1.0))
    }


@contextmanager
def no_collections() -> Iterator[None]:
    """Without the garbage collector, whose pauses look like blocked calls."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Probes:
    """The probes of one process, on the current device."""

    def __init__(self, on: Cuda) -> None:
        self.on = on
        self.torch: Any = on.torch
        torch = self.torch
        self.tiny = torch.zeros(8, device="cuda")
        self.other = torch.zeros(8, device="cuda")
        self.pinned = torch.zeros(8, pin_memory=True)
        self.some = [torch.zeros(8, device="cuda") for _ in range(4)]
        self.left, self.right = (torch.zeros(32, 32, device="cuda") for _ in range(2))
        self.out = torch.zeros(32, 32, device="cuda")
        self.streams = [torch.cuda.Stream() for _ in range(8)]
        self.events = [torch.cuda.Event(enable_timing=False) for _ in range(64)]
        self.timed = [torch.cuda.Event(enable_timing=True) for _ in range(64)]
        for event in (*self.events, *self.timed):
            event.record()
        for launch in self.launches().values():
            launch(0)
        torch.cuda.synchronize()

    def launches(self) -> dict[str, Callable[[int], object]]:
        """What can be launched on the current stream, by name."""
        torch = self.torch
        return {
            "kernel": lambda _: self.tiny.add_(1),
            "product": lambda _: torch.mm(self.left, self.right, out=self.out),
            "kernel_of_4_KiB_of_arguments": lambda _: torch._foreach_add_(self.some, 1.0),
            "memset": lambda _: self.tiny.zero_(),
            "copy_on_device": lambda _: self.other.copy_(self.tiny),
            "copy_to_device_pinned": lambda _: self.tiny.copy_(self.pinned, non_blocking=True),
            "copy_to_host_pinned": lambda _: self.pinned.copy_(self.tiny, non_blocking=True),
            "event": lambda place: self.events[place % 64].record(),
            "timed_event": lambda place: self.timed[place % 64].record(),
            # Of a stream that has nothing to do.
            "wait_for_done_event": lambda _: torch.cuda.current_stream().wait_event(self.events[0]),
        }

    def hold(self, *streams: Any) -> Launch:  # noqa: ANN401
        """Hold up the streams, or the current one."""

        def held() -> None:
            for stream in streams or (self.on.compute,):
                with self.on.on(stream):
                    self.on.spin(1000 * HELD_MS)

        return held

    def fill(self, launch: Callable[[int], object], *held: Any, most: int = MOST_CALLS) -> Filled:  # noqa: ANN401
        return fill(self.hold(*held), launch, self.on.synchronize, most)

    def by_turns(self, *launches: Callable[[int], object]) -> Callable[[int], object]:
        """The first, the second, …, the first again."""
        return lambda place: launches[place % len(launches)](place)

    def onto(self, stream: Any, launch: Callable[[int], object]) -> Callable[[int], object]:  # noqa: ANN401
        """Launch on another stream."""

        def launched(place: int) -> None:
            with self.on.on(stream):
                launch(place)

        return launched

    def depths(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Names of probes and what answers them, the most important first."""
        launches = self.launches()
        kernel, first, second, *_ = launches["kernel"], *self.streams
        on_first, on_second = self.onto(first, kernel), self.onto(second, kernel)
        yield "kernel", lambda: self.fill(kernel)
        yield "kernel again", lambda: self.fill(kernel)
        yield "kernel on another stream", lambda: self.fill(on_first, first)
        yield "two streams, both held", lambda: self.fill(self.by_turns(on_first, on_second), first, second)
        yield "two streams, one held", lambda: self.fill(self.by_turns(on_first, on_second), first)
        yield (
            "800 on one, then another, both held",
            lambda: self.fill(lambda place: (on_first if place < 800 else on_second)(place), first, second),
        )
        for count in (4, 8):
            streams = self.streams[:count]
            turns = self.by_turns(*(self.onto(stream, kernel) for stream in streams))
            yield f"{count} streams, all held", lambda turns=turns, streams=streams: self.fill(turns, *streams)  # type: ignore[misc]
        for name, launch in launches.items():
            if name != "kernel":
                yield f"{name} alone", lambda launch=launch: self.fill(launch)  # type: ignore[misc]
                turns = self.by_turns(kernel, launch)
                yield f"kernel and {name} by turns", lambda turns=turns: self.fill(turns)  # type: ignore[misc]
        yield "wait for a held event, and kernel on the waiting stream", self.waiting_stream
        for links in LINKS_OF_A_GRAPH:
            yield f"graph of {links} kernels", lambda links=links: self.graph(links)  # type: ignore[misc]

    def waiting_stream(self) -> Filled:
        """Launches on a stream that is not held itself, but waits for one that is."""
        first, second = self.streams[:2]

        def hold() -> None:
            self.hold(first)()
            second.wait_stream(first)

        return fill(hold, self.onto(second, self.launches()["kernel"]), self.on.synchronize)

    def graph(self, links: int) -> Filled:
        """Launches of a graph of so many kernels in a row."""
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(links):
                self.tiny.add_(1)
        for _ in range(3):
            graph.replay()
        return self.fill(lambda _: graph.replay())

    def drain(self, kernel_us: float, count: int) -> dict[str, Any]:
        """Launch kernels that are each so long, more of them than the queue takes."""
        began, took = [], []
        self.on.synchronize()
        with no_collections():
            start = time.perf_counter_ns()
            for _ in range(count):
                begin = time.perf_counter_ns()
                self.on.spin(kernel_us)
                took.append(time.perf_counter_ns() - begin)
                began.append(begin)
            self.on.synchronize()
            whole_us = (time.perf_counter_ns() - start) / 1000
        return drained(took, began, whole_us / count)

    def drains(self, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
        """When blocked calls go on; once under the profiler, whose recording is left in `folder`."""
        yield "kernels of 100 us", lambda: self.drain(100.0, 2600)
        yield "kernels of 20 us", lambda: self.drain(20.0, 6000)
        yield "kernels of 1 ms", lambda: self.drain(1000.0, 1300)
        yield "kernels of 100 us under the profiler", lambda: self.profiled_drain(folder / "drain.pt.trace.json")

    def profiled_drain(self, trace: Path) -> dict[str, Any]:
        torch = self.torch
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as recorder:
            told = self.drain(100.0, 2400)
        recorder.export_chrome_trace(str(trace))
        return told

    def under_profiler(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """The queue's depth while the profiler records."""
        torch, launches = self.torch, self.launches()
        kernel, first, second, *_ = launches["kernel"], *self.streams
        turns = self.by_turns(self.onto(first, kernel), self.onto(second, kernel))

        def profiled(ask: Callable[[], Filled]) -> Callable[[], Filled]:
            def run() -> Filled:
                kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
                with torch.profiler.profile(activities=kinds):
                    return ask()

            return run

        yield "kernel", profiled(lambda: self.fill(kernel))
        yield "two streams, both held", profiled(lambda: self.fill(turns, first, second))
        yield "kernel and event by turns", profiled(lambda: self.fill(self.by_turns(kernel, launches["event"])))
        yield (
            "kernel and copy_on_device by turns",
            profiled(lambda: self.fill(self.by_turns(kernel, launches["copy_on_device"]))),
        )
        yield (
            "kernel_of_4_KiB_of_arguments alone",
            profiled(lambda: self.fill(launches["kernel_of_4_KiB_of_arguments"])),
        )
        yield "graph of 100 kernels", profiled(lambda: self.graph(100))

    def other_thread(self) -> dict[str, float]:
        """How long another thread's launches on a free stream take while this one is blocked on a held stream."""
        first, second = self.streams[:2]
        kernel = self.launches()["kernel"]
        took: list[tuple[int, int]] = []
        over = threading.Event()

        def launch_elsewhere() -> None:
            elsewhere = self.onto(second, kernel)
            while not over.is_set():
                begin = time.perf_counter_ns()
                elsewhere(0)
                took.append((begin, time.perf_counter_ns() - begin))
                time.sleep(0.001)

        thread = threading.Thread(target=launch_elsewhere)
        thread.start()
        try:
            seen = self.fill(self.onto(first, kernel), first)
        finally:
            over.set()
            thread.join()
        return {"blocked_ms": seen.blocked_ms, "longest_of_other_ms": round(max(one for _, one in took) / 1e6, 3)}

    def calls_on_busy_device(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """How long calls take that may wait for the device, in ms, while it is held up for 30 ms."""
        torch = self.torch
        for kib in (1, 32, 63, 65, 256, 1024, 16384):
            host, pinned = torch.zeros(256 * kib), torch.zeros(256 * kib, pin_memory=True)
            device = torch.zeros(256 * kib, device="cuda")
            yield (
                f"{kib} KiB to device, pageable",
                self.timed_call(
                    lambda device=device, host=host: device.copy_(host, non_blocking=True)  # type: ignore[misc]
                ),
            )
            yield (
                f"{kib} KiB to device, pinned",
                self.timed_call(
                    lambda device=device, pinned=pinned: device.copy_(pinned, non_blocking=True)  # type: ignore[misc]
                ),
            )
            yield (
                f"{kib} KiB to host, pageable",
                self.timed_call(
                    lambda device=device, host=host: host.copy_(device, non_blocking=True)  # type: ignore[misc]
                ),
            )
        yield "item", self.timed_call(self.tiny.sum().item)
        yield (
            "allocation of 1 GiB (cudaMalloc)",
            self.timed_call(lambda: torch.empty(1 << 30, device="cuda", dtype=torch.uint8)),
        )
        yield "empty_cache (cudaFree)", self.timed_call(torch.cuda.empty_cache)
        yield (
            "pinned allocation of 64 MiB",
            self.timed_call(lambda: torch.empty(1 << 26, dtype=torch.uint8, pin_memory=True)),
        )
        yield "event query", self.timed_call(self.events[0].query)
        yield "new stream's wait_stream", self.timed_call(lambda: self.streams[0].wait_stream(self.streams[1]))
        yield "module load (a kernel used for the first time)", self.timed_call(lambda: torch.erfinv(self.tiny))

    def timed_call(self, call: Launch) -> Callable[[], float]:
        def timed() -> float:
            self.on.synchronize()
            self.on.spin(30_000.0)
            begin = time.perf_counter_ns()
            call()
            took = time.perf_counter_ns() - begin
            self.on.synchronize()
            return round(took / 1e6, 4)

        return timed


def ask(on: Cuda, folder: Path, *, short: bool = False, until: float = float("inf")) -> Iterator[tuple[str, Any]]:
    """Sections and what each probe of it says; a probe that fails says of what, and none begins after `until`."""
    probes = Probes(on)
    sections: list[tuple[str, Iterator[tuple[str, Callable[[], object]]]]] = [("depth", probes.depths())]
    if not short:
        sections += [
            ("drain", probes.drains(folder)),
            ("depth under the profiler", probes.under_profiler()),
            ("other thread", iter([("launches of another thread", probes.other_thread)])),
            ("calls on a busy device, ms", probes.calls_on_busy_device()),
        ]
    for section, named in sections:
        said: dict[str, Any] = {}
        for place, (name, probe) in enumerate(named):
            if time.monotonic() > until or (short and place > 5):
                break
            said[name] = tried(probe)
        yield section, said


def tried(probe: Callable[[], object]) -> object:
    """What the probe says, as plain values."""
    try:
        said = probe()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return asdict(said) if isinstance(said, Filled) else said
