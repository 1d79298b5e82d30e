"""Quantities of the processor: matrix product and memory, by NumPy on one core."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kair_engine.probe.repetitions import Quantity, timed

SIDE: Final = 512
COPIED_BYTES: Final = 64 << 20
_THREADS: Final = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def processor_quantities(threads: str, repetition_s: float) -> tuple[Quantity, ...]:
    """Matrix product and copy in memory; `threads` is what `numpy_on_one_core` said."""
    return _matrix_product(threads, repetition_s), _memory_copy(repetition_s)


def numpy_on_one_core() -> str:
    """Loads NumPy for one thread, unless the environment says otherwise or it is loaded already; tells the number.

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
