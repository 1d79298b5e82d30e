"""Small Kineto traces of jobs whose hosts run ahead: kernels begin a step and more after what launches them.

Each rank's host takes HOST µs for a step, its device PERIOD, so that the host is further ahead in every step. Devices
compute, one kernel after another, and all-reduce at the end of the step, which ends on all ranks at once.
"""

from pathlib import Path
from typing import Final

from support import kineto_builder as kb

FIRST: Final = 10_000
"""When the host begins with the first step, in µs."""
LEAD: Final = 1_500
"""So much later the device begins with it."""
HOST, PERIOD, KERNELS = 400, 1_000, 4
FIRST_STEP: Final = 2
FETCH: Final = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
ALL_REDUCE: Final = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def write_run_ahead(folder: Path, *, ranks: int = 3, steps: int = 4, slow_input: int | None = 1) -> Path:
    """One trace per rank; the input of one of them takes 150 µs, that of the others 30."""
    for rank in range(ranks):
        events = [event for number in range(steps) for event in _step(number, 150 if rank == slow_input else 30)]
        kb.write(folder / f"rank{rank}.json", kb.trace(events, rank=rank, world=ranks))
    return folder


def _step(number: int, fetched: float) -> list[kb.Event]:
    host, device = FIRST + number * HOST, FIRST + LEAD + number * PERIOD
    made = [kb.step(FIRST_STEP + number, host, HOST - 10), kb.annotation(FETCH, host, fetched)]
    for at in range(KERNELS):
        launched, correlation = host + 160 + 50 * at, 1000 * (number + 1) + at
        made.append(kb.op(f"aten::op{at}", launched, 40))
        made.append(kb.launch(launched + 10, 5, correlation))
        made.append(kb.kernel(f"kernel{at}", device + 200 * at, 190, correlation))
    correlation = 1000 * (number + 1) + 900
    made.append(kb.launch(host + 370, 5, correlation))
    made.append(kb.kernel(ALL_REDUCE, device + 800, 195, correlation, stream=20))
    return made
