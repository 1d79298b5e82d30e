"""What the benchmarks share: a child process and what it took, peak memory, and the table at the end."""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Cell = str | int | float | bool | None
Row = Mapping[str, Cell]

_STATUS = Path("/proc/self/status")
# Installed programs have their modules compiled: without, a command compiles 250 of them, 0.2 s.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
_CLEAR_PEAK = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Took:
    """What one child process took, and what it printed."""

    wall_s: float
    cpu_s: float
    """User and system."""
    peak_mb: float
    stdout: str


def run_child(
    command: Sequence[str], *, cores: int | None = None, environment: Mapping[str, str] | None = None
) -> Took:
    """Runs `command` to its end, on the first `cores` of this process' cores. Raises SystemExit where it fails.

    The kernel counts the memory of whoever started a process as that process' own until it runs its program:
    the caller must be smaller than what it measures. Of several processes the largest one's peak is told.
    """
    allowed = sorted(os.sched_getaffinity(0))
    with TemporaryFile("w+") as errors:
        begin = time.perf_counter()
        os.sched_setaffinity(0, allowed[:cores])
        try:
            child = Popen(command, stdout=PIPE, stderr=errors, text=True, env=_ENVIRONMENT | dict(environment or {}))
        finally:
            os.sched_setaffinity(0, allowed)
        assert child.stdout is not None
        with child.stdout:
            stdout = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            errors.seek(0)
            raise SystemExit(f"{' '.join(command)} failed ({child.returncode}):\n{errors.read()[-4000:]}")
    return Took(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6, stdout)


def best_of(runs: int, once: Callable[[], Took]) -> Took:
    """The run that took least CPU of `runs`: what other processes did to the rest is not the program's doing."""
    return min((once() for _ in range(runs)), key=lambda took: took.cpu_s)


def in_fresh_process(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """`function`'s result from a process of its own, so that its peak memory is its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def peak_mb() -> float:
    """This process' peak resident memory since its start, or since `forget_peak`."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit("this system does not tell a process' peak memory (VmHWM)")


def forget_peak() -> None:
    """Makes the present memory the peak, so that `peak_mb` tells what came after."""
    _CLEAR_PEAK.write_text("5")


def report(benchmark: str, rows: Sequence[Row], *, as_json: bool, notes: Sequence[str] = ()) -> None:
    """Prints the rows (which share their columns) as a table and the notes under it, or all of it as JSON."""
    machine = f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"
    if as_json:
        document = {"benchmark": benchmark, "machine": machine, "rows": rows, "notes": notes}
        json.dump(document, sys.stdout, indent=2)
        print()
        return
    print(f"\n{benchmark} ({machine})\n")
    cells = [list(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
    print("", *notes, sep="\n")


def say(text: str) -> None:
    """Progress goes to stderr; stdout carries the result alone."""
    print(text, file=sys.stderr, flush=True)


def _text(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.0f}"
    return str(value)
