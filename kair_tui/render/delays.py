"""Delays in words: those that cost nothing, stopped threads, and idle devices.

Delays cost nothing if hosts run ahead of their devices. Stops of threads have a number, lengths, and whether ranks stop
together. Devices idle because of late launches, the profiler, or other processes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kair_engine.causes import CAUSES
from kair_engine.results.evidence_kinds import Evidence, Halted, HostStops, NoCore, Throttled, Ticks
from kair_engine.results.rank import RankProfileResult
from kair_engine.results.sensitivity import SensitivityResult
from kair_engine.results.triage import Absorbed
from kair_engine.results.whatif import AbsorbedFix, LackOfCores
from kair_tui.render.sentences import filled, sentence_of
from kair_tui.render.units import (
    WORTH_A_FIGURE,
    count,
    duration,
    its,
    ranks_in_words,
)

ON_DEVICES: Final = "on the devices: hosts run ahead"
"""The source of the steps' times, next to a figure."""
OF_HOSTS: Final = ("slow_input", "slow_host")
"""Faults that a host's lead over its device absorbs."""

Ranks = tuple[int, ...]


def absorbed_in_words(one: Absorbed, step_us: float) -> str:
    """Return what takes longer, why nobody waits for it, and how much more it could take."""
    longer = f"{_takes_longer(one)} than {its(one.ranks)} peers'"
    if one.ahead_us is None:
        return f"{longer}; {_no_shorter(one, step_us)}"
    ahead, more = _ahead(one.ranks, one.ahead_us), _more(one.ranks, one.slack_us_per_step)
    return f"{longer}; {its(one.ranks)} {ahead}, so that it costs {_cost(one, step_us)} ({more})"


def absorbed_briefly(absorbed: Sequence[Absorbed], step_us: float) -> str:
    """Return the longest of these delays, for use in a longer sentence."""
    one = max(absorbed, key=lambda delay: delay.longer_us_per_step)
    why = f"{its(one.ranks)} {_ahead(one.ranks, one.ahead_us)}" if one.ahead_us is not None else "hosts run ahead"
    others = f" (and {count(len(absorbed) - 1)} more)" if len(absorbed) > 1 else ""
    return f"{_takes_longer(one)}, which costs {_cost(one, step_us)}: {why}{others}"


def absorbed_fix_in_words(one: AbsorbedFix, step_us: float) -> str:
    """Return that a fix saves nothing, why, and how much longer its hosts could take."""
    changes = abs(one.saved_us)
    same = "takes as long" if changes < WORTH_A_FIGURE * step_us else f"differs by no more than {duration(changes)}"
    return f"with {one.fix} a step {same}: {_why(one)} ({_more(one.ranks, one.slack_us_per_step)})"


def lead_in_words(result: RankProfileResult) -> str | None:
    """Return how far a rank's host is ahead of its device, and its slack; None if it does not run ahead."""
    if result.slack_us_per_step is None:
        return None
    slack = f"it could take {duration(result.slack_us_per_step)} a step longer before the device waits"
    if result.ahead_us is None:
        return f"host: ahead of its device, but for moments at which that waits for a launch; {slack}"
    return f"host: {duration(result.ahead_us)} ahead of its device at least; {slack}"


def absorbs_in_words(result: SensitivityResult) -> str | None:
    """Return how much later hosts could be without anybody waiting; None if they do not run ahead."""
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
    """Return how far the hosts are ahead, as a clause after their owners."""
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


def ticks_in_words(tick_us: float, share: float) -> str:
    """Return the waiting for the scheduler's ticks, and its share of the step."""
    return filled(Ticks.waited, {"tick_us": tick_us, "share_of_step": share})


def lack_of_cores_in_words(cores: LackOfCores, step_us: float) -> str:
    """Return the lack of cores measured over all ranks."""
    ready = cores.ready_by_rank_us.values()
    measured = NoCore(sum(ready) / len(ready), step_us, min(ready), max(ready))
    helped = list(cores.helpers_by_rank_us.values())
    helpers = [f"other threads of its process computed {duration(sum(helped) / len(helped))}"] if any(helped) else []
    stops: list[Evidence] = [Throttled(cores.throttled)] if cores.throttled else []
    stops += [Halted(cores.halted)] if cores.halted else []
    return "; ".join([filled(NoCore.of_all, measured), *helpers, *map(sentence_of, stops)])


def stops_in_words(figures: Mapping[str, Any], *, alone: bool = False) -> str:
    """Return `32.0 times a step (half of them longer than 13.2 ms, …), 77.5 % of the step, …` from HostStops' figures.

    `alone`: about one rank, without others.
    """
    return filled(HostStops.of_rank if alone else HostStops.of_ranks(figures["together"]), figures)
