"""The link between ranks that were launched together: all-reduces of several sizes, by torch.distributed."""

from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import Final

from kair_engine.probe.gpu import Torch, torch_if_there
from kair_engine.probe.launch import Launch
from kair_engine.probe.recording import Series
from kair_engine.probe.repetitions import MAX_REPETITIONS, seconds_of
from kair_engine.results.runs.probe import LinkState, MeasureName
from kair_engine.trace.model import KairWarning

SIZES: Final[tuple[tuple[MeasureName, int], ...]] = (
    ("all_reduce_64_kib", 64 << 10),
    ("all_reduce_1_mib", 1 << 20),
    ("all_reduce_16_mib", 16 << 20),
)
MEETING_S: Final = 120
"""How long ranks wait for one another: one may have to load torch from a slow disk."""
_WARM_UP: Final = 3
_FEWEST: Final = 8


def link_series(
    launch: Launch, gpu: int | None, seconds: float
) -> tuple[tuple[Series, ...], LinkState, tuple[KairWarning, ...]]:
    """The all-reduces of this launch; else why there are none, with a warning where ranks were launched together."""
    if launch.world_size == 1:
        return (), "one_rank", ()
    if launch.address is None:
        return (), "no_address", (_left_out("$MASTER_ADDR and $MASTER_PORT do not say where the ranks meet"),)
    torch = torch_if_there()
    if torch is None or not import_module("torch.distributed").is_available():
        return (), "no_torch", (_left_out("torch.distributed is not installed"),)
    try:
        return _measured(torch, launch, gpu, seconds), "measured", ()
    except (RuntimeError, OSError, ValueError) as error:
        return (), "failed", (_left_out(" ".join(str(error).split())[:200]),)


def _left_out(why: str) -> KairWarning:
    return KairWarning("no_link", f"the link between the ranks was not measured: {why}")


def _measured(torch: Torch, launch: Launch, gpu: int | None, seconds: float) -> tuple[Series, ...]:
    distributed = import_module("torch.distributed")
    if gpu is not None:
        torch.cuda.set_device(gpu)
    distributed.init_process_group(
        "gloo" if gpu is None else "nccl",
        # By the environment, from which torch also learns whether the launcher keeps the meeting place already.
        init_method="env://",
        rank=launch.rank,
        world_size=launch.world_size,
        timeout=timedelta(seconds=MEETING_S),
    )
    try:
        return tuple(_all_reduces(torch, gpu, name, size, seconds / len(SIZES)) for name, size in SIZES)
    finally:
        with suppress(RuntimeError):
            distributed.destroy_process_group()


def _all_reduces(torch: Torch, gpu: int | None, name: MeasureName, size: int, seconds: float) -> Series:
    """All-reduces of one size, as many on every rank: the first rank says how many fit."""
    device = "cpu" if gpu is None else f"cuda:{gpu}"
    distributed = import_module("torch.distributed")
    values = torch.zeros(size // 4, dtype=torch.float32, device=device)

    def reduce(times: int) -> None:
        for _ in range(times):
            distributed.all_reduce(values)
        if gpu is not None:
            torch.cuda.synchronize(gpu)

    reduce(_WARM_UP)
    fitting = int(seconds / seconds_of(reduce, _WARM_UP) * _WARM_UP)
    times = torch.tensor([min(max(fitting, _FEWEST), MAX_REPETITIONS)], device=device)
    distributed.broadcast(times, src=0)
    took = tuple(seconds_of(reduce, 1) * 1e6 for _ in range(int(times.item())))
    return Series(name, f"{distributed.get_world_size()} ranks, {distributed.get_backend()}", "us", took)
