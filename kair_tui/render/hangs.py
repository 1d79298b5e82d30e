"""Hangs in words: who has not arrived at which collective."""

import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from kair_engine.causes import CAUSES
from kair_engine.results.triage import Evidence, Finding
from kair_tui.render.text import short_name
from kair_tui.render.units import count, plural, ranks_in_words


def stands_still(finding: Finding) -> bool:
    """Whether the job does not go on for it: it has no price, and no steps."""
    return CAUSES[finding.cause].stops_job


def held_up_at(finding: Finding) -> str:
    """`all_gather number 4`: where the job stands."""
    sequence = next((one.figures["sequence"] for one in finding.evidence if "sequence" in one.figures), None)
    number = "" if sequence is None else f" number {count(int(sequence))}"
    return f"{short_name(finding.operator or 'a collective')}{number}"


def nobody_to_blame(finding: Finding) -> str:
    """Why nobody is accused though the job stands still, and what to look at."""
    kinds = {one.kind for one in finding.evidence}
    if "no_majority" in kinds:
        return "they called different things, and which is right is not told: compare their code paths"
    if "wait_circle" in kinds:
        return "they wait for each other: look at the order of their calls"
    return "no rank is missing: look at the network between them"


_TO_DO: Final = {
    "died": (
        "Look at why {who} died: the last lines of its log, the stacks of hangs/ in the job's folder, the kernel's log "
        "(dmesg: killed process, segfault, XID), and the launcher's, which may have ended it."
    ),
    "unheard": "Look at the host of {who}: whether it is up, and reached by the others.",
    "no_majority": (
        "Compare what these ranks call there{operator}, and with what: a branch that some of them take, a batch or a "
        "parameter of another size, groups made in another order."
    ),
    "wait_circle": (
        "{Who} wait for each other{operator}: have all of them call in one order (of sends and receives one end "
        "receives first, or both in one batch; of groups the same first on all)."
    ),
    "other_call": (
        "Look at why {who} called something else than the others{operator}: a branch of the code that not every rank "
        "takes, a batch or a parameter of another size there, a call that was skipped before."
    ),
    "waits_elsewhere": (
        "Have all ranks call their process groups in one order: {who} called another one first{operator}."
    ),
    "transfers_met": (
        "Both ends are in the same transfer{operator} and neither leaves it: compare its sizes at both ends, then look "
        "at the network between them (NCCL_DEBUG=INFO, link errors, a switch)."
    ),
}
"""Kind of evidence → the suggestion, that of the first that is there."""


def what_to_do(finding: Finding) -> str | None:
    """The suggestion, where it is not that of the cause; `{who}` is filled in as there."""
    kinds = {one.kind for one in finding.evidence}
    return next((text for kind, text in _TO_DO.items() if kind in kinds), None)


def _not_arrived(one: Evidence) -> str:
    waiting = plural(int(one.figures["waiting"]), "rank")
    wait = "waits" if one.figures["waiting"] == 1 else "wait"
    return f"{_have(one)} not called {_call(one)}; {waiting} of its {_members(one)} {wait} in it"


def _held_up(one: Evidence) -> str:
    why = "it waits itself" if len(one.ranks) == 1 else "they wait themselves"
    return f"{_have(one)} not called {_call(one)} either, as {why}; {_waiting(one)} in that"


def _in_no_call(one: Evidence) -> str:
    alone = len(one.ranks) == 1
    idle = f"{ranks_in_words(one.ranks)} {'waits' if alone else 'wait'} in no call"
    operation, at, location = str(one.about).partition(" at ")
    whose = "its last one is" if alone else "their last ones are"
    return f"{idle}; {whose} {short_name(operation)}{_number(one)}{at and f', at {location}'}"


def _called_at(one: Evidence) -> str:
    return f"{ranks_in_words(one.ranks)} called{_number(one) or ' that'} at {one.about}"


def _waits_for(one: Evidence) -> str:
    peer, wait = int(one.figures["peer"]), "waits" if len(one.ranks) == 1 else "wait"
    operation, _, group = str(one.about).partition(" of process group ")
    end = {"send": "a send to", "recv": "a receive from"}.get(operation, "a transfer with")
    known = f"rank {count(peer)}" if peer >= 0 else "a rank that is not told"
    number = _number(one).lstrip()
    where = f"{number} of process group" if number else "of process group"
    return f"{ranks_in_words(one.ranks)} {wait} in {end} {known} ({where} {short_name(group)})"


def _wait_circle(one: Evidence) -> str:
    return f"{ranks_in_words(one.ranks)} wait for each other: the order of their calls differs"


def _transfers_met(one: Evidence) -> str:
    return f"{ranks_in_words(one.ranks)} are in sends and receives that answer each other, and none is over"


def _no_majority(one: Evidence) -> str:
    number = count(int(one.figures["sequence"]))
    return (
        f"as number {number} the {_members(one)} members called different things, none of them more than half of all "
        "members: which is right is not told"
    )


def _called(one: Evidence) -> str:
    what, _, group = str(one.about).rpartition(" of process group ")
    number = count(int(one.figures["sequence"]))
    return f"{ranks_in_words(one.ranks)} called {what} as number {number} of process group {short_name(group)}"


def _unreachable(one: Evidence) -> str:
    whose = "its process" if len(one.ranks) == 1 else "their processes"
    return f"{ranks_in_words(one.ranks)}: NCCL's RAS gets no answer from {whose}"


def _no_dump(one: Evidence) -> str:
    left = f"{ranks_in_words(one.ranks)} left no dump, as one that is in no call does"
    lost = "if it was only lost, it may be in the call too: then look at the network"
    return f"{left}; {_waiting(one)} in {_call(one)} ({lost})" if one.figures else left


def _no_report(one: Evidence) -> str:
    return f"{ranks_in_words(one.ranks)} reported no time-out; {_waiting(one)} in {_call(one)}"


def _waiting(one: Evidence) -> str:
    waiting = plural(int(one.figures["waiting"]), "rank")
    return f"{waiting} {'waits' if one.figures['waiting'] == 1 else 'wait'}"


def _waits_elsewhere(one: Evidence) -> str:
    wait = "waits" if len(one.ranks) == 1 else "wait"
    return f"{ranks_in_words(one.ranks)} {wait} in another process group: groups are called in another order there"


def _other_call(one: Evidence) -> str:
    number = count(int(one.figures["sequence"]))
    return f"{ranks_in_words(one.ranks)}, as collective number {number}, called {one.about}"


def _all_arrived(one: Evidence) -> str:
    return f"all {_members(one)} members have called {_call(one)}, and nobody is through with it"


def _last_completed(one: Evidence) -> str:
    number = count(int(one.figures["sequence"]))
    named = f", {short_name(one.about)}" if one.about else ""
    return f"the last collective of that group that all were through with is number {number}{named}"


def _have(one: Evidence) -> str:
    return f"{ranks_in_words(one.ranks)} {'has' if len(one.ranks) == 1 else 'have'}"


def _number(one: Evidence) -> str:
    return f" number {count(int(one.figures['sequence']))}" if "sequence" in one.figures else ""


def _call(one: Evidence) -> str:
    operation, _, group = str(one.about).partition(" of process group ")
    return f"{short_name(operation)} number {count(int(one.figures['sequence']))} of process group {short_name(group)}"


def _members(one: Evidence) -> str:
    return count(int(one.figures["members"]))


def _died(one: Evidence) -> str:
    """Of one rank: by what, and in which step."""
    figures = one.figures
    step = f" in step {count(int(figures['step']))}" if "step" in figures else ""
    error = f" ({one.about})" if one.about else ""
    if "signal" in figures:
        is_out = "out_of_memory" in figures
        why = ", as memory ran out: the count of such kills in its memory group rose" if is_out else ""
        return f"{ranks_in_words(one.ranks)} died{step} of {_signal_name(int(figures['signal']))}{why}{error}"
    if "exit_status" in figures:
        status = count(int(figures["exit_status"]))
        return f"{ranks_in_words(one.ranks)} ended{step} with exit status {status}{error}"
    return (
        f"{ranks_in_words(one.ranks)} died{step}, and left no trace of how: SIGKILL is likeliest, by somebody or for "
        "want of memory"
    )


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _ended_early(one: Evidence) -> str:
    return f"{ranks_in_words(one.ranks)} ended in order, before the others"


def _unheard(one: Evidence) -> str:
    return f"{ranks_in_words(one.ranks)}: the host is not heard{f' ({one.about})' if one.about else ''}"


def _stands_at(one: Evidence) -> str:
    step = f" in step {count(int(one.figures['step']))}" if "step" in one.figures else ""
    alone = len(one.ranks) == 1
    stand = ("was" if alone else "were") if "was" in one.figures else "stands" if alone else "stand"
    return f"{ranks_in_words(one.ranks)} {stand}{step}{f', {one.about}' if one.about else ''}"


def how_it_ended(finding: Finding) -> str | None:
    """Of ranks that died, or whose host is not heard: that, in one sentence; else None."""
    told = [one for one in finding.evidence if one.kind in ("died", "ended_early", "unheard")]
    own = [one for one in told if set(one.ranks) <= set(finding.ranks)]
    return SENTENCES[own[0].kind](own[0]) if own else None


SENTENCES: Final[Mapping[str, Callable[[Evidence], str]]] = {
    "not_arrived": _not_arrived,
    "no_dump": _no_dump,
    "other_call": _other_call,
    "all_arrived": _all_arrived,
    "last_completed": _last_completed,
    "waits_elsewhere": _waits_elsewhere,
    "held_up": _held_up,
    "in_no_call": _in_no_call,
    "called_at": _called_at,
    "waits_for": _waits_for,
    "wait_circle": _wait_circle,
    "transfers_met": _transfers_met,
    "no_majority": _no_majority,
    "called": _called,
    "no_report": _no_report,
    "unreachable": _unreachable,
    "died": _died,
    "ended_early": _ended_early,
    "unheard": _unheard,
    "stands_at": _stands_at,
}
