"""Hangs in words: who has not arrived at which collective."""

import re
from typing import Final

from kair_engine.causes import CAUSES
from kair_engine.results.evidence_kinds import StandsAt
from kair_engine.results.stuck import waiting_in
from kair_engine.results.triage import Finding, TriageResult
from kair_tui.render.sentences import sentence_of
from kair_tui.render.text import short_name
from kair_tui.render.units import count, ranks_in_words


def stands_still(finding: Finding) -> bool:
    """Return whether the job hangs because of it: then it has no price, and no steps."""
    return CAUSES[finding.cause].stops_job


def held_up_at(finding: Finding) -> str:
    """Return `all_gather number 4`: where the job hangs."""
    sequence = next((one.figures["sequence"] for one in finding.evidence if "sequence" in one.figures), None)
    number = "" if sequence is None else f" number {count(int(sequence))}"
    return f"{short_name(finding.operator or 'a collective')}{number}"


def stuck_in_words(finding: Finding) -> str:
    """Return `stuck in step 9, in forward, at train.py:33 loss_of; 2 ranks wait in all_gather number 4`.

    If nobody is accused, or the rank's place is unknown, return `the job is stuck at all_gather number 4`.
    """
    places = (one for one in finding.evidence if isinstance(one, StandsAt) and set(one.ranks) <= set(finding.ranks))
    if (place := next(places, None)) is None:
        return f"the job is stuck at {held_up_at(finding)}"
    who = "" if set(place.ranks) == set(finding.ranks) else f"{ranks_in_words(place.ranks)} "
    step = "" if place.step is None else f" in step {count(int(place.step))}"
    at = f", {place.about}" if place.about else ""
    others = "others wait for it" if finding.operator is None else f"others wait in {held_up_at(finding)}"
    return f"{who}stuck{step}{at}; {waiting_in(finding) or others}"


def nobody_to_blame(finding: Finding) -> str:
    """Return why nobody is accused though the job hangs, and what to examine."""
    kinds = finding.shows
    if "died" in kinds:
        return "a failure of any other rank causes that as well: read the last lines of each rank's log"
    if "no_majority" in kinds:
        return "they called different things, and it is unknown which is right: compare their code paths"
    if "wait_circle" in kinds:
        return "they wait for each other: look at the order of their calls"
    return "no rank is missing: look at the network between them"


def stands_where(result: TriageResult, rank: int) -> str:
    """Return the first sentence about a rank of a job that stands still, without its number; "" where none is."""
    return next(iter(sentences_about(result, rank)), "").removeprefix(f"rank {rank} ")


def sentences_about(result: TriageResult, rank: int) -> list[str]:
    """Return what is known of a rank of a job that stands still: its calls, and where it is."""
    evidence = (one for finding in result.findings if stands_still(finding) for one in finding.evidence)
    return [one.sentence for one in evidence if rank in one.ranks]


_TO_DO: Final = {
    "other_step": (
        "Look at which collective {who} left out, or called once more than the others: a branch of the code that not "
        "every rank takes."
    ),
    "ended_early": (
        "Look at why {who} left: a return, sys.exit or os._exit that not every rank takes, or fewer batches there."
    ),
    "died": (
        "Look at why {who} died: the last lines of its log, its stacks (hangs/ in a watched job's folder), the "
        "kernel's log (dmesg: the OOM killer, segfault, XID), and the launcher's, which may have ended it."
    ),
    "stuck_watchdog": (
        "Look at which call {who} is held in (py-spy dump --native --pid PID): a call of CUDA that hangs, or a thread "
        "that keeps Python's lock; dmesg there (XID)."
    ),
    "link_failed": (
        "Look at the network ports of {who} (ibstat, ibqueryerrors, dmesg): the cable, the switch's port, link flaps."
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
"""Kind of evidence → the suggestion; the first kind present counts."""


_OF_ERRORS: Final = (
    (
        r"(?i)\becc\b|fallen off the bus|\bxid\b|nvlink error|hardware|double.bit",
        "Drain the GPU of {who}: its own error is of the device (nvidia-smi -q -d ECC, dmesg: XID).",
    ),
    (
        r"(?i)out of ?memory|outofmemory|resource_exhausted|cannot allocate memory|oom",
        "Look at the memory of {who}: larger inputs than its peers', another process on its device or host, a leak; "
        "on the host dmesg shows the OOM killer.",
    ),
    (r"(?i)no space left|disk quota|errno 28", "Free the disk that {who} writes to."),
    (
        r"(?i)illegal memory access|device-side assert|misaligned address|launch failure",
        "Find the kernel of {who} that failed: run it again with CUDA_LAUNCH_BLOCKING=1, or compute-sanitizer; if it "
        "fails on this device alone, drain it (dmesg: XID).",
    ),
)
"""A rank's own error → the suggestion."""


def what_to_do(finding: Finding) -> str | None:
    """Return the suggestion, if it differs from the cause's; `{who}` is filled in likewise."""
    kinds = finding.shows
    errors = [str(one.about) for one in finding.evidence if one.kind in ("died", "last_error") and one.about]
    for pattern, text in _OF_ERRORS if finding.ranks else ():
        if any(re.search(pattern, error) for error in errors):
            return text
    return next((text for kind, text in _TO_DO.items() if kind in kinds), None)


def how_it_ended(finding: Finding) -> str | None:
    """Return how ranks died, left or differed, in one sentence; None for other findings."""
    ends = (one for one in finding.evidence if one.kind in ("other_step", "died", "ended_early", "unheard"))
    first = next((one for one in ends if set(one.ranks) <= set(finding.ranks or finding.seen_on)), None)
    return None if first is None else getattr(first, "sentence", None) or sentence_of(first)
