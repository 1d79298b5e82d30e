"""Delays in words: those that cost nothing, threads that stand still, devices that do not work.

Delays that cost nothing, in words: hosts that run ahead of their devices absorb them.

Stops of threads in words: how often, how long, and whether ranks stand still together.

What keeps devices from working, in words: late launches, the profiler, other processes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kair_engine.causes import CAUSES
from kair_engine.frozen import dataclass
from kair_engine.results.rank import RankProfileResult
from kair_engine.results.sensitivity import SensitivityResult
from kair_engine.results.triage import Absorbed, Evidence
from kair_engine.results.whatif import AbsorbedFix, LackOfCores
from kair_tui.render.units import (
    WORTH_A_FIGURE,
    count,
    duration,
    its,
    one_decimal,
    percent,
    ranks_in_words,
)

ON_DEVICES: Final = "on the devices: hosts run ahead"
"""Whose times the steps' are, beside a figure."""
OF_HOSTS: Final = ("slow_input", "slow_host")
"""Faults that a host's lead over its device absorbs."""

Ranks = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class AbsorbedInWords(Absorbed):
    """A delay of ranks' hosts that costs nothing: they are ahead of their devices, which never wait for it."""

    sentence: str


def absorbed_in_words(one: Absorbed, step_us: float) -> str:
    """What takes longer, why nobody waits for it, and how much more that could be."""
    longer = f"{_takes_longer(one)} than {its(one.ranks)} peers'"
    if one.ahead_us is None:
        return f"{longer}; {_no_shorter(one, step_us)}"
    ahead, more = _ahead(one.ranks, one.ahead_us), _more(one.ranks, one.slack_us_per_step)
    return f"{longer}; {its(one.ranks)} {ahead}, so that it costs {_cost(one, step_us)} ({more})"


def absorbed_briefly(absorbed: Sequence[Absorbed], step_us: float) -> str:
    """The longest of these delays, for a sentence that says more than that."""
    one = max(absorbed, key=lambda delay: delay.longer_us_per_step)
    why = f"{its(one.ranks)} {_ahead(one.ranks, one.ahead_us)}" if one.ahead_us is not None else "hosts run ahead"
    others = f" (and {count(len(absorbed) - 1)} more)" if len(absorbed) > 1 else ""
    return f"{_takes_longer(one)}, which costs {_cost(one, step_us)}: {why}{others}"


def absorbed_fix_in_words(one: AbsorbedFix, step_us: float) -> str:
    """That a fix saves nothing, why, and how much more the hosts that it is about could take."""
    changes = abs(one.saved_us)
    same = "takes as long" if changes < WORTH_A_FIGURE * step_us else f"differs by no more than {duration(changes)}"
    return f"with {one.fix} a step {same}: {_why(one)} ({_more(one.ranks, one.slack_us_per_step)})"


def lead_in_words(result: RankProfileResult) -> str | None:
    """How far a rank's host is ahead of its device, and how much more that bears; None where it does not run ahead."""
    if result.slack_us_per_step is None:
        return None
    slack = f"it could take {duration(result.slack_us_per_step)} a step longer before the device waits"
    if result.ahead_us is None:
        return f"host: ahead of its device, but for moments at which that waits for a launch; {slack}"
    return f"host: {duration(result.ahead_us)} ahead of its device at least; {slack}"


def absorbs_in_words(result: SensitivityResult) -> str | None:
    """How much later hosts could be before anybody waits for them; None where they do not run ahead."""
    if result.absorbs_us_per_step is None:
        return None
    once = "" if result.absorbs_once_us is None else f", or once {duration(result.absorbs_once_us)}"
    lasting = f"{duration(result.absorbs_us_per_step)} a step longer"
    return f"hosts run ahead: until a rank's host takes {lasting}{once}, nobody waits for it"


def _takes_longer(one: Absorbed) -> str:
    words = CAUSES[one.cause].words
    who = ranks_in_words(one.ranks)
    what = f"{who}'s {words}" if len(one.ranks) == 1 else f"{words} of {who}"
    return f"{what} {'take' if words.endswith('s') else 'takes'} {duration(one.longer_us_per_step)} a step longer"


def _why(one: AbsorbedFix) -> str:
    who, is_one = ranks_in_words(one.ranks), len(one.ranks) == 1
    whose = f"{who}'s host is" if is_one else f"the hosts of {who} are"
    how = "" if one.ahead_us is None else f"{duration(one.ahead_us)} "
    return f"{whose} {how}ahead of {'its device' if is_one else 'their devices'}"


def _ahead(ranks: Ranks, ahead_us: float) -> str:
    """Behind whose it is."""
    if len(ranks) == 1:
        return f"host is {duration(ahead_us)} ahead of its device"
    return f"hosts are {duration(ahead_us)} ahead of their devices"


def _more(ranks: Ranks, slack_us: float) -> str:
    return f"{'it' if len(ranks) == 1 else 'they'} could take {duration(slack_us)} a step longer"


def _no_shorter(one: Absorbed, step_us: float) -> str:
    by = "no" if _is_free(one, step_us) else _cost(one, step_us)
    return f"a step would be {by} shorter without it"


def _cost(one: Absorbed, step_us: float) -> str:
    return "nothing" if _is_free(one, step_us) else duration(one.costs_us_per_step)


def _is_free(one: Absorbed, step_us: float) -> bool:
    return one.costs_us_per_step < WORTH_A_FIGURE * step_us


TOGETHER: Final = 1.5
"""Ranks stop together if stops independent across ranks would cover this many times more of the host's time."""


def ticks_in_words(tick_us: float, share: float) -> str:
    """What waits for the scheduler's ticks, and its share of the step."""
    return (
        f"whatever they compute, operations end with the scheduler's ticks; what is as long as a tick "
        f"({duration(tick_us)}) or longer is {percent(share)} of the mean rank's step"
    )


def cores_in_words(figures: Mapping[str, float]) -> str:
    """How long threads were ready without a core: of the mean rank, and from which to which."""
    ready, step = duration(figures["ready_us_per_step"]), duration(figures["step_us"])
    least, most = duration(figures["least_us"]), duration(figures["most_us"])
    return f"the mean rank was ready and had no core for {ready} of each step of {step} ({least} to {most})"


def lack_of_cores_in_words(cores: LackOfCores, step_us: float) -> str:
    """What was measured of all ranks."""
    ready = cores.ready_by_rank_us.values()
    mean = sum(ready) / len(ready)
    said = cores_in_words(
        {"ready_us_per_step": mean, "step_us": step_us, "least_us": min(ready), "most_us": max(ready)}
    )
    helped = list(cores.helpers_by_rank_us.values())
    helpers = [f"other threads of its process computed {duration(sum(helped) / len(helped))}"] if any(helped) else []
    throttled = [throttled_in_words(cores.throttled)] if cores.throttled else []
    halted = [halted_in_words(cores.halted)] if cores.halted else []
    return "; ".join([said, *helpers, *throttled, *halted])


def throttled_in_words(per_step: float) -> str:
    """How often a quota of CPU time stopped the mean rank."""
    return f"a quota of CPU time stopped the mean rank's process {one_decimal(per_step)} times a step"


def halted_in_words(per_step: float) -> str:
    """How often signals stopped the mean rank."""
    return f"signals (SIGSTOP) stopped the mean rank's process {one_decimal(per_step)} times a step"


def stops_in_words(figures: Mapping[str, Any], *, alone: bool = False) -> str:
    """`32.0 times a step (half of them longer than 13.2 ms, …), 77.5 % of the step, …`, of the figures of HostStops.

    `alone`: of one rank, nothing of others.
    """
    when = "each rank at moments of its own, as when cores are shared"
    if figures["together"] > TOGETHER:
        when = "ranks of a host together, as under one quota"
    of_rank = (
        f"{one_decimal(figures['per_step'])} times a step (half of them longer than {duration(figures['median_us'])}, "
        f"the longest {duration(figures['longest_us'])}), {percent(figures['share_of_step'])} of the step"
    )
    longest = duration(figures["slowest_rank_us"])
    return of_rank if alone else f"{of_rank}, on the rank that stands still longest {longest}; {when}"


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
    return f"the median rank's device idles {idle} a step ({share}) between launches that follow one another"


def _device_taken(one: Evidence) -> str:
    waited, share = duration(one.figures["waited_us"]), percent(one.figures["share_of_step"])
    return (
        f"what the median rank has launched waits {waited} a step ({share}) for a device that runs nothing of its "
        "rank: another process has the device"
    )


SENTENCES: Final[Mapping[str, Callable[[Evidence], str]]] = {
    "profiler": _profiler,
    "device_idle": _device_idle,
    "one_by_one": _one_by_one,
    "device_taken": _device_taken,
}
