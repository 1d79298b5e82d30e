"""Delays that cost nothing, in words: hosts that run ahead of their devices absorb them."""

from collections.abc import Sequence
from typing import Final

from kair_engine.causes import CAUSES
from kair_engine.frozen import dataclass
from kair_engine.results.rank import RankProfileResult
from kair_engine.results.sensitivity import SensitivityResult
from kair_engine.results.triage import Absorbed
from kair_engine.results.whatif import AbsorbedFix
from kair_tui.render.units import WORTH_A_FIGURE, count, duration, ranks_in_words

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
    longer = f"{_takes_longer(one)} than {_its(one.ranks)} peers'"
    if one.ahead_us is None:
        return f"{longer}; {_no_shorter(one, step_us)}"
    ahead, more = _ahead(one.ranks, one.ahead_us), _more(one.ranks, one.slack_us_per_step)
    return f"{longer}; {_its(one.ranks)} {ahead}, so that it costs {_cost(one, step_us)} ({more})"


def absorbed_briefly(absorbed: Sequence[Absorbed], step_us: float) -> str:
    """The longest of these delays, for a sentence that says more than that."""
    one = max(absorbed, key=lambda delay: delay.longer_us_per_step)
    why = f"{_its(one.ranks)} {_ahead(one.ranks, one.ahead_us)}" if one.ahead_us is not None else "hosts run ahead"
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


def _its(ranks: Ranks) -> str:
    return "its" if len(ranks) == 1 else "their"
