"""What kind_situations.py does to a job's ranks: faults, and the operations that they add."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kinds_jobs import READ, Fault, Job, Op, program


def slower(factors: Mapping[int, float], family: str = "", since: int = 0) -> Fault:
    """Ranks take longer in all kernels, or those of a family."""

    def change(rank: int, step: int, ops: list[Op]) -> list[Op]:
        if rank not in factors or step < since:
            return ops
        return [replace(op, ns=op.ns * factors[rank]) if op.family and family in op.family else op for op in ops]

    return change


def in_step(only: int, fault: Fault) -> Fault:
    """The fault in one step alone."""
    return lambda rank, step, ops: fault(rank, step, ops) if step == only else ops


def added(where: Callable[[int, int], Sequence[Op]], at: float = 1.0) -> Fault:
    """More operations for (rank, step), after that part of the step's list; 1: behind all else."""

    def change(rank: int, step: int, ops: list[Op]) -> list[Op]:
        new, place = where(rank, step), round(at * len(ops))
        return [*ops[:place], *new, *ops[place:]] if new else ops

    return change


def fetching(where: Callable[[int, int], float]) -> Fault:
    """The fetch of (rank, step) takes so long; 0: as ever."""

    def change(rank: int, step: int, ops: list[Op]) -> list[Op]:
        ns = where(rank, step)
        return [replace(ops[0], ns=ns), *ops[1:]] if ns else ops

    return change


def around(name: str, *ops: Op, category: str = "cpu_op", thread: int = 0) -> list[Op]:
    """Operations within one of the host's."""
    return [Op("open", name, 0, thread=thread), *ops, Op("close", "", 0, category=category)]


def pause(ns: float, mark: str = "") -> list[Op]:
    """The host does something that nothing shows, or its mark alone."""
    return around(mark, Op("host", "", ns), category="user_annotation") if mark else [Op("host", "", ns)]


def compiling(ns: float) -> list[Op]:
    """TorchDynamo and Inductor, as they mark themselves."""
    inner = Op("host", "compile_fx_inner (dynamo_timed)", 0.6 * ns)
    return around("_compile.compile_inner (dynamo_timed)", Op("host", "", 0.37 * ns), inner, Op("host", "", 0.03 * ns))


def allocating(ns: float) -> list[Op]:
    """The allocator frees, for which the driver waits for the device, and allocates."""
    calls = [Op("free", "cudaFree", 0.15 * ns, thread=1, category="runtime")]
    parts = (("cudaFree", 0.15), ("cudaMalloc", 0.3), ("cudaMalloc", 0.4))
    calls += [Op("host", name, part * ns, thread=1, category="runtime") for name, part in parts]
    return around("aten::empty_strided", *calls, thread=1)


def batch(kernels: int, each_ns: float) -> list[Op]:
    """A forward pass of so many kernels whose result is read: of evaluation or generation."""
    layer = [op for op in program(Job("ddp", 2)) if op.family and op.thread == 0][:8]
    ops = [replace(layer[index % 8], ns=each_ns, awaits="", noise=-1, family="") for index in range(kernels)]
    return [*ops, READ]


def batches(count: int, each_ns: float) -> list[Op]:
    """So many of eight kernels."""
    return [op for _ in range(count) for op in batch(8, each_ns / 8)]
