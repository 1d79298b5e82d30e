"""What is measured of a machine: its processor, its GPU, its host thread.

Quantities of the processor: matrix product and memory, by NumPy on one core.

Quantities of a GPU: matrix product and memory, by torch; and torch itself, where it can be had.

Quantities of the host thread, and what the system counts meanwhile: switches, waiting for a core, limits.
"""

import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from kair_engine.errors import UsageError
from kair_engine.probe.recording import Quantity, timed
from kair_engine.results.probe import HostCounters

SIDE: Final = 512
COPIED_BYTES: Final = 64 << 20
_THREADS: Final = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def processor_quantities(threads: str, repetition_s: float) -> tuple[Quantity, ...]:
    """Matrix product and copy in memory; `threads` is what `numpy_on_one_core` said."""
    return _matrix_product(threads, repetition_s), _memory_copy(repetition_s)


def numpy_on_one_core() -> str:
    """Load NumPy for one thread, unless the environment says otherwise or it is loaded already; return the number.

    Ranks of one machine that all took all cores would measure one another.
    """
    given = next((os.environ[name] for name in _THREADS if os.environ.get(name)), None)
    if given is None and "numpy" not in sys.modules:
        with _set(dict.fromkeys(_THREADS, "1")):
            import numpy as np  # noqa: F401 (reads its number of threads when it is loaded)

        given = "1"
    return "all cores" if given is None else "1 thread" if given == "1" else f"{given} threads"


@contextmanager
def _set(variables: dict[str, str]) -> Iterator[None]:
    """Environment variables for the time being."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _matrix_product(threads: str, repetition_s: float) -> Quantity:
    import numpy as np

    rng = np.random.default_rng(0)
    left, right = rng.random((2, SIDE, SIDE), dtype=np.float32)
    product = np.empty_like(left)

    def multiply(times: int) -> None:
        for _ in range(times):
            np.matmul(left, right, out=product)

    once = timed(multiply, 2 * SIDE**3 / 1e9, repetition_s)
    return Quantity("cpu_matrix_product", f"{SIDE}×{SIDE} float32, {threads}", "gflop_per_s", once)


def _memory_copy(repetition_s: float) -> Quantity:
    import numpy as np

    source = np.ones(COPIED_BYTES, dtype=np.uint8)
    target = np.empty_like(source)

    def copy(times: int) -> None:
        for _ in range(times):
            np.copyto(target, source)

    once = timed(copy, 2 * COPIED_BYTES / 1e9, repetition_s)
    return Quantity("cpu_memory_copy", f"{COPIED_BYTES >> 20} MiB, read and written", "gb_per_s", once)


GPU_SIDE: Final = 4096
GPU_COPIED_BYTES: Final = 256 << 20

Torch = Any
"""The module, which has no types and need not be there."""


def torch_if_there() -> Torch | None:
    """Torch, or None where it is missing or cannot be loaded (a driver that is missing raises OSError)."""
    try:
        return import_module("torch")
    except (ImportError, OSError, RuntimeError):
        return None


def chosen_gpu(device: str, local_rank: int) -> int | None:
    """Return the number of the GPU to measure; None for the processor alone. Raises UsageError where it cannot be had.

    `device` is auto, cpu, cuda or cuda:N. Of several GPUs that are seen each local rank takes its own.
    """
    if device == "cpu":
        return None
    number = _number_of(device)
    torch = torch_if_there()
    if torch is None or not torch.cuda.is_available():
        if device == "auto":
            return None
        why = "torch is not installed" if torch is None else "torch finds no GPU"
        raise UsageError(f"--device {device}: {why}", "--device cpu probes the processor")
    count = int(torch.cuda.device_count())
    if number is not None and number >= count:
        raise UsageError(f"--device {device}: torch finds {count} of them, the first is cuda:0")
    return local_rank % count if number is None else number


def _number_of(device: str) -> int | None:
    kind, _, number = device.partition(":")
    if device in ("auto", "cuda"):
        return None
    if kind != "cuda" or not number.isascii() or not number.isdigit():
        raise UsageError(f"--device {device!r} is no device", "use auto, cpu, cuda or cuda:N")
    return int(number)


def gpu_name(gpu: int) -> str:
    """Return what the driver calls it."""
    return str(_torch().cuda.get_device_name(gpu))


def gpu_quantities(gpu: int, repetition_s: float) -> tuple[Quantity, ...]:
    """Matrix product in the precision that training uses, and copy in the GPU's memory."""
    torch = _torch()
    precision = "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
    return _gpu_matrix_product(torch, gpu, precision, repetition_s), _gpu_memory_copy(torch, gpu, repetition_s)


def _gpu_matrix_product(torch: Torch, gpu: int, precision: str, repetition_s: float) -> Quantity:
    place = {"device": f"cuda:{gpu}", "dtype": getattr(torch, precision)}
    # Random values: products of zeros or ones draw less power, and run at a higher clock.
    left, right = torch.randn(GPU_SIDE, GPU_SIDE, **place), torch.randn(GPU_SIDE, GPU_SIDE, **place)
    product = torch.empty(GPU_SIDE, GPU_SIDE, **place)
    multiply = _awaited(torch, gpu, lambda: torch.matmul(left, right, out=product))
    once = timed(multiply, 2 * GPU_SIDE**3 / 1e9, repetition_s)
    return Quantity("gpu_matrix_product", f"{GPU_SIDE}×{GPU_SIDE} {precision}", "gflop_per_s", once)


def _gpu_memory_copy(torch: Torch, gpu: int, repetition_s: float) -> Quantity:
    place = {"device": f"cuda:{gpu}", "dtype": torch.uint8}
    source, target = torch.ones(GPU_COPIED_BYTES, **place), torch.empty(GPU_COPIED_BYTES, **place)
    copy = _awaited(torch, gpu, lambda: target.copy_(source))
    once = timed(copy, 2 * GPU_COPIED_BYTES / 1e9, repetition_s)
    return Quantity("gpu_memory_copy", f"{GPU_COPIED_BYTES >> 20} MiB, read and written", "gb_per_s", once)


def _awaited(torch: Torch, gpu: int, launch: Callable[[], object]) -> Callable[[int], None]:
    """Launch so many, and wait once for all of them."""

    def run(times: int) -> None:
        for _ in range(times):
            launch()
        torch.cuda.synchronize(gpu)

    return run


def _torch() -> Torch:
    return import_module("torch")


SLEEP_S: Final = 0.001
_SLEEPS: Final = 5
"""In a repetition."""

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")


def host_quantities(repetition_s: float) -> tuple[Quantity, ...]:
    """How fast Python runs, and how late a thread wakes up."""
    loop = timed(_loop, 1.0, repetition_s)
    return (
        Quantity("python_loop", "one addition", "loops_per_s", loop),
        Quantity("wake_up", f"a sleep of {SLEEP_S * 1000:g} ms", "us", _lateness_us),
    )


def _loop(times: int) -> None:
    total = 0
    for number in range(times):
        total += number


def _lateness_us() -> float:
    """How much later than asked a thread wakes up, the mean of some sleeps."""
    began = time.perf_counter()
    for _ in range(_SLEEPS):
        time.sleep(SLEEP_S)
    late = (time.perf_counter() - began) / _SLEEPS - SLEEP_S
    return max(late * 1e6, 1e-3)


def processor_name(proc: Path = PROC) -> str:
    """Return the processor's model, as far as the system states it."""
    for line in _text(proc / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "cpu model", "Hardware") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Snapshot:
    """What the system has counted so far."""

    at_s: float
    waited_ns: int | None
    switches: int
    throttled: int | None


def snapshot(proc: Path = PROC, cgroups: Path = CGROUPS) -> Snapshot:
    """Return the counters of this thread and its control group."""
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    return Snapshot(time.perf_counter(), _waited_ns(proc), switches, _throttled(_group(proc, cgroups)))


def counted(before: Snapshot, after: Snapshot, proc: Path = PROC, cgroups: Path = CGROUPS) -> HostCounters:
    """Return what was counted between two snapshots."""
    seconds = max(after.at_s - before.at_s, 1e-9)
    waited = _difference(before.waited_ns, after.waited_ns)
    return HostCounters(
        run_queue_share=None if waited is None else waited / 1e9 / seconds,
        involuntary_switches_per_s=(after.switches - before.switches) / seconds,
        cpu_quota=_quota(_group(proc, cgroups)),
        throttled_periods=_difference(before.throttled, after.throttled),
    )


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(after - before, 0)


def _waited_ns(proc: Path) -> int | None:
    """Return the thread's time on a run queue.

    It is the second of three numbers, all of them 0 where the kernel counts none.
    """
    words = _text(proc / "thread-self" / "schedstat").split() or _text(proc / "self" / "schedstat").split()
    return int(words[1]) if len(words) == 3 and all(word.isdigit() for word in words) and words[0] != "0" else None


def _group(proc: Path, cgroups: Path) -> Path:
    """Return the folder of the process's control group; inside a container its own is the root."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        root = cgroups if not controllers else cgroups / "cpu"
        if (not controllers or "cpu" in controllers.split(",")) and (folder := root / name.lstrip("/")).is_dir():
            return folder
    return cgroups if (cgroups / "cpu.max").exists() else cgroups / "cpu"


def _quota(group: Path) -> float | None:
    """Cores that the group may use: cpu.max of the second version of control groups, cpu.cfs_* of the first."""
    words = _text(group / "cpu.max").split()
    if not words:
        words = [*_text(group / "cpu.cfs_quota_us").split(), *_text(group / "cpu.cfs_period_us").split()]
    if len(words) != 2 or not all(word.isdigit() for word in words) or words[1] == "0":
        return None  # "max" and -1 are no limit
    return int(words[0]) / int(words[1])


def _throttled(group: Path) -> int | None:
    for line in _text(group / "cpu.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == "nr_throttled" and value.isdigit():
            return int(value)
    return None


def _text(path: Path) -> str:
    """Return a small file of the system; empty if it is missing."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
