"""Warnings in words: as the engine tells them, or sentences made from their figures."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kair_engine.frozen import dataclass
from kair_engine.trace.model import KairWarning
from kair_tui.render.units import (
    count,
    duration,
    its,
    percent,
    plural,
    ranks_in_words,
    significant,
    them,
    whole_percent,
)

_IN_DOUBT: Final = "a part of its recording is missing, its times are in doubt"


@dataclass(frozen=True)
class WarningInWords:
    """Something that the reader of an answer should know; `code` is stable, for machines."""

    code: str
    message: str


def warnings_in_words(*sources: Iterable[KairWarning]) -> tuple[WarningInWords, ...]:
    """All warnings, each once, in the order they first come."""
    return tuple(dict.fromkeys(warning_in_words(warning) for source in sources for warning in source))


def warning_in_words(warning: KairWarning) -> WarningInWords:
    """The same warning, told."""
    return WarningInWords(warning.code, _SENTENCES[warning.code](warning) if warning.figures else warning.message)


def _few_steps(one: KairWarning) -> str:
    if not one.ranks:
        return _too_few_for_a_test(one)
    return _slow_moment(one)


def _too_few_for_a_test(one: KairWarning) -> str:
    steps = plural(int(one.figures["steps"]), "step")
    return (
        f"in {steps} one of {_number(one, 'ranks')} ranks is slowest throughout by chance too often to be accused: "
        f"record at least {_number(one, 'fewest_steps')} steps, better 10"
    )


def _slow_moment(one: KairWarning) -> str:
    steps = plural(int(one.figures["steps"]), "step")
    return (
        f"{_who(one)} took {_share(one)} of the step longer than its peers ({one.about}), but in {steps} a slow rank "
        f"cannot be told from a slow moment: record at least {_number(one, 'fewest_steps')} steps, better 10"
    )


def _giant_step(one: KairWarning) -> str:
    length, others = duration(one.figures["length_us"]), duration(one.figures["others_us"])
    why = f"most of it peers waited for {_who(one)}" if one.ranks else "no single rank was waited for"
    return (
        f"step {int(one.figures['step'])} took {length}, longer than the {_number(one, 'others')} others together "
        f"({others}), and {why}: one step accuses nobody, all figures are of the others"
    )


def _profilers_began_apart(one: KairWarning) -> str:
    others = int(one.figures["ranks"]) - 1
    more = f" ({plural(others, 'more rank')} began late as well)" if others else ""
    steps = int(one.figures["steps"])
    which = f"step {int(one.figures['step'])} is" if steps == 1 else f"the first {steps} steps are"
    return (
        f"the profiler of rank {int(one.figures['rank'])} began {duration(one.figures['behind_us'])} after rank "
        f"{int(one.figures['first_rank'])}'s{more}: {which} left out, in which ranks waited for it"
    )


def _graphs_not_recorded(one: KairWarning) -> str:
    return (
        f"devices are busy with CUDA graphs for {percent(one.figures['share_of_step'])} of the step, and what is in "
        "them (kernels, collectives) is not recorded, so that it cannot be told which rank is slow: "
        "record with nsys profile --cuda-graph-trace=node"
    )


def _unknown_members(one: KairWarning) -> str:
    counts_as = "exposed communication" if one.about == "communication" else "the rest"
    return (
        f"of {_who(one)}'s step, {_share(one)} went by in communication whose other members are not known; how much of "
        f"it was waiting cannot be told, and it counts as {counts_as}"
    )


def _z_cannot_fire(one: KairWarning) -> str:
    highest, threshold = significant(one.figures["highest_z"]), _number(one, "threshold")
    return (
        f"with {_number(one, 'ranks')} ranks no |z| can exceed √(N−1) = {highest}: the paper's z > {threshold} "
        "cannot fire"
    )


def _simulation_error(one: KairWarning) -> str:
    off, step = whole_percent(one.figures["off"]), int(one.figures["worst_step"])
    replayed, recorded = duration(one.figures["replayed_us"]), duration(one.figures["recorded_us"])
    return (
        f"the replay is {off} off the recording, most in step {step} ({replayed} instead of {recorded}): read the "
        "figures with care"
    )


def _nobody_waits(one: KairWarning) -> str:
    waited = percent(one.figures["waited_share"])
    return (
        f"{_who(one)} {_is(one)} slower than {its(one.ranks)} peers by {_share(one)} of the step, but they wait only "
        f"{waited} of it for {them(one.ranks)}: no straggler"
    )


def _replay_in_doubt(one: KairWarning) -> str:
    """Of a rank that nobody doubts: the order of arrivals and its own kernels say the same."""
    longer, their = percent(one.figures["waited_share"]), its(one.ranks)
    comes = "comes" if len(one.ranks) == 1 else "come"
    return (
        f"{_who(one)} {comes} last to nearly all collectives, with kernels of {their} own that take {longer} of the "
        f"step longer, but a replay prices that at {_share(one)}: the price is what {their} kernels take longer, "
        "the replay is in doubt"
    )


def _groups_differ(one: KairWarning) -> str:
    own, other = one.figures["own_us"], one.figures["other_us"]
    return (
        f"the transfers of {_who(one)} ({one.about}) take {duration(own)} a step, the same ones of their sibling "
        f"{duration(other)} ({_share(one)} of the step): {_number(one, 'links')} groups or links cannot say which is "
        "usual; the same job on other hosts, or with four of them, would"
    )


def _too_many_workers(one: KairWarning) -> str:
    # Rounded up: it is a bound.
    bound = percent(math.ceil(one.figures["others_at_most"] * 1000) / 1000)
    return (
        f"of {_number(one, 'ranks')} ranks the {_number(one, 'priced')} that exceed their peers most are priced one by "
        f"one; none of the others makes a step more than {bound} longer"
    )


def _no_common_step(one: KairWarning) -> str:
    return f"{_who(one)} recorded none of the steps that the other ranks did, and {_was(one)} not compared with them"


def _no_peer(one: KairWarning) -> str:
    return (
        f"{_who(one)} {_has(one)} no peer: no other rank communicates alike, so {_it(one)} {_was(one)} compared with "
        "none (a pipeline stage of one rank, another build, or a part of the recording missing?)"
    )


def _fewer_recorded(one: KairWarning) -> str:
    own, peers = count(round(one.figures["recorded"])), count(round(one.figures["peers"]))
    if one.about == "matched":
        return (
            f"of {_who(one)}'s communication {own} calls a step match other ranks', of its peers' {peers}: {_IN_DOUBT}"
        )
    what = "communication calls" if one.about == "communication" else "operations"
    less = whole_percent(1 - one.figures["recorded"] / one.figures["peers"])
    return f"{_who(one)} recorded {own} {what} a step where its peers have {peers} (−{less}): {_IN_DOUBT}"


def _it(one: KairWarning) -> str:
    return "it" if len(one.ranks) == 1 else "they"


def _was(one: KairWarning) -> str:
    return "was" if len(one.ranks) == 1 else "were"


def _has(one: KairWarning) -> str:
    return "has" if len(one.ranks) == 1 else "have"


def _is(one: KairWarning) -> str:
    return "is" if len(one.ranks) == 1 else "are"


def _who(one: KairWarning) -> str:
    return ranks_in_words(one.ranks)


def _share(one: KairWarning) -> str:
    return percent(one.figures["share_of_step"])


def _number(one: KairWarning, name: str) -> str:
    return count(int(one.figures[name]))


def _larger_share(one: KairWarning) -> str:
    samples, usual = (f"{one.figures[name]:g}" for name in ("samples", "usual_samples"))
    own, peers = (duration(one.figures[name]) for name in ("us_per_sample", "usual_us_per_sample"))
    takes = f"{_who(one)} {'takes' if len(one.ranks) == 1 else 'take'} longer"
    return (
        f"{takes} for what the job gives {them(one.ranks)}, {samples} samples a step, peers {usual}: {own} a sample, "
        f"peers {peers}, so no straggler"
    )


def _new_sizes(one: KairWarning) -> str:
    steps = plural(int(one.figures["steps"]), "step")
    several = "" if one.figures["changes"] == 1 else f", and {_number(one, 'changes')} times in all"
    return (
        f"from step {int(one.figures['step'])} on ranks take other numbers of samples than before{several}: {steps} "
        "from there on, in which that may be compiled anew, are left out"
    )


def _busy_machine(one: KairWarning) -> str:
    waited = percent(one.figures["waited_share"])
    return f"{one.about}: the probe waited for a core {waited} of the time: other programs ran there meanwhile"


_SENTENCES: Final[Mapping[str, Callable[[KairWarning], str]]] = {
    "few_steps": _few_steps,
    "giant_step": _giant_step,
    "profilers_began_apart": _profilers_began_apart,
    "larger_share": _larger_share,
    "new_sizes": _new_sizes,
    "graphs_not_recorded": _graphs_not_recorded,
    "busy_machine": _busy_machine,
    "unmatched_collectives": _unknown_members,
    "z_cannot_fire": _z_cannot_fire,
    "simulation_error": _simulation_error,
    "too_many_workers": _too_many_workers,
    "no_common_step": _no_common_step,
    "no_peer": _no_peer,
    "fewer_recorded": _fewer_recorded,
    "nobody_waits": _nobody_waits,
    "replay_in_doubt": _replay_in_doubt,
    "groups_differ": _groups_differ,
}
