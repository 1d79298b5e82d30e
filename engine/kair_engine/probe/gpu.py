"""Quantities of a GPU: matrix product and memory, by torch; and torch itself, where it can be had."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from kair_engine.errors import UsageError
from kair_engine.probe.repetitions import Quantity, timed

SIDE: Final = 4096
COPIED_BYTES: Final = 256 << 20

Torch = Any
"""The module, which has no types and need not be there."""


def torch_if_there() -> Torch | None:
    """Torch, or None where it is missing or cannot be loaded (a driver that is missing raises OSError)."""
    try:
        return import_module("torch")
    except (ImportError, OSError, RuntimeError):
        return None


def chosen_gpu(device: str, local_rank: int) -> int | None:
    """The number of the GPU to measure; None for the processor alone. Raises UsageError where it cannot be had.

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
    """What the driver calls it."""
    return str(_torch().cuda.get_device_name(gpu))


def gpu_quantities(gpu: int, repetition_s: float) -> tuple[Quantity, ...]:
    """Matrix product in the precision that training uses, and copy in the GPU's memory."""
    torch = _torch()
    precision = "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
    return _matrix_product(torch, gpu, precision, repetition_s), _memory_copy(torch, gpu, repetition_s)


def _matrix_product(torch: Torch, gpu: int, precision: str, repetition_s: float) -> Quantity:
    place = {"device": f"cuda:{gpu}", "dtype": getattr(torch, precision)}
    # Random values: products of zeros or ones draw less power, and run at a higher clock.
    left, right = torch.randn(SIDE, SIDE, **place), torch.randn(SIDE, SIDE, **place)
    product = torch.empty(SIDE, SIDE, **place)
    multiply = _awaited(torch, gpu, lambda: torch.matmul(left, right, out=product))
    once = timed(multiply, 2 * SIDE**3 / 1e9, repetition_s)
    return Quantity("gpu_matrix_product", f"{SIDE}×{SIDE} {precision}", "gflop_per_s", once)


def _memory_copy(torch: Torch, gpu: int, repetition_s: float) -> Quantity:
    place = {"device": f"cuda:{gpu}", "dtype": torch.uint8}
    source, target = torch.ones(COPIED_BYTES, **place), torch.empty(COPIED_BYTES, **place)
    copy = _awaited(torch, gpu, lambda: target.copy_(source))
    once = timed(copy, 2 * COPIED_BYTES / 1e9, repetition_s)
    return Quantity("gpu_memory_copy", f"{COPIED_BYTES >> 20} MiB, read and written", "gb_per_s", once)


def _awaited(torch: Torch, gpu: int, launch: Callable[[], object]) -> Callable[[int], None]:
    """Launches so many, and waits once for all of them."""

    def run(times: int) -> None:
        for _ in range(times):
            launch()
        torch.cuda.synchronize(gpu)

    return run


def _torch() -> Torch:
    return import_module("torch")
