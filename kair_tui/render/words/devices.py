"""What keeps devices from working, in words: late launches, the profiler, other processes."""

from collections.abc import Callable, Mapping
from typing import Final

from kair_engine.results.evidence import Evidence
from kair_tui.render.units import duration, percent, ranks_in_words, significant


def _profiler(one: Evidence) -> str:
    held, work = duration(one.figures["held_us_per_step"]), "the profiler's own work (as asking for buffers)"
    if not one.ranks:
        return f"{work} holds up the median rank's launches for {held} a step"
    peers = duration(one.figures["peers_us_per_step"])
    return f"{work} holds up launches of {ranks_in_words(one.ranks)} for {held} a step, those of peers for {peers}"


def _device_idle(one: Evidence) -> str:
    idle, share = duration(one.figures["idle_us"]), percent(one.figures["share_of_step"])
    return f"the median rank's device idles {idle} a step ({share}) because its host has not launched yet"


def _one_by_one(one: Evidence) -> str:
    idle, share = duration(one.figures["idle_us"]), percent(one.figures["share_of_step"])
    of_idle = percent(one.figures["share_of_idle"])
    rate, kernel = significant(one.figures["launches_per_ms"]), duration(one.figures["kernel_us"])
    return (
        f"the median rank's device idles {idle} a step ({share}, {of_idle} of all its idle time) between launches that "
        f"follow one another, {rate} each ms; half of those kernels take less than {kernel}"
    )


def _device_taken(one: Evidence) -> str:
    waited, share = duration(one.figures["waited_us"]), percent(one.figures["share_of_step"])
    waits, longest = significant(one.figures["waits"]), duration(one.figures["longest_us"])
    return (
        f"what the median rank has launched waits {waited} a step ({share}) for a device that runs nothing of its "
        f"rank, {waits} times, the longest {longest}: another process has the device"
    )


SENTENCES: Final[Mapping[str, Callable[[Evidence], str]]] = {
    "profiler": _profiler,
    "device_idle": _device_idle,
    "one_by_one": _one_by_one,
    "device_taken": _device_taken,
}
