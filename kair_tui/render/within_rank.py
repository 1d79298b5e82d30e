"""Which of a rank's kernels are slower than its peers', and which are not, in words; and the conclusion."""

from collections.abc import Mapping
from typing import Final

from kair_engine.causes import CAUSES
from kair_engine.results.evidence_kinds import KERNEL_FAMILIES, DeviceModels, WholeDevice
from kair_engine.results.triage import Finding
from kair_tui.render.sentences import filled
from kair_tui.render.units import count

_ADVICE: Final[Mapping[str, str]] = {
    "attention": (
        "The work of attention depends on data that no shape shows: compare how sequences are packed on {who} and on a "
        "peer (cu_seqlens, document lengths; work grows with the sum of their squares), and pack them evenly."
    ),
    "experts": (
        "The work of experts depends on how many tokens they are given: compare tokens per expert on {who} and on a "
        "peer, then look at the capacity factor, the load-balancing loss and where experts are placed."
    ),
    "lookups": (
        "What lookups take depends on which rows are asked for: compare the indices on {who} and on a peer (how many, "
        "how often the same ones), and how tables are distributed over ranks."
    ),
    "selections": (
        "What these kernels take depends on their values: compare on {who} and on a peer how many elements they sort "
        "or keep."
    ),
    "arithmetic": (
        "Compare clock, power and temperature of {who}'s device{device} with a peer's while the job runs (nvidia-smi "
        "-q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE), and locked clocks and power limits; if it stays slow, drain it."
    ),
    "memory": (
        "Compare the memory clock, ECC errors and remapped rows of {who}'s device{device} with a peer's (nvidia-smi -q "
        "-d CLOCK,ECC,ROW_REMAPPER), and what else uses its memory; if it stays slow, drain it."
    ),
}
"""Family of kernels → the suggestion if only these are slower."""
_ONE_KERNEL: Final = (
    "Compare what {who} computes there{operator}, and how it was tuned (autotuning, versions, layout), with a peer: "
    "all other kernels run as fast as there, so that the device as a whole is not slow."
)
_DEVICE: Final = frozenset({"whole_device", "device_models"})


def advice(finding: Finding) -> str | None:
    """Return the suggestion that follows from slower and equal kernels; None if the cause's own applies."""
    for one in finding.evidence:
        if one.kind == "one_kernel" or (one.kind == "one_family" and one.about == "matrix_products"):
            return _ONE_KERNEL
        if one.kind == "one_family":
            return _ADVICE.get(str(one.about))
    return None


def family_of(finding: Finding) -> str | None:
    """Return the kernels that alone are slower, `attention kernels`; None if there is no such family."""
    found = (str(one.about) for one in finding.evidence if one.kind == "one_family" and one.about != "copies")
    return next((KERNEL_FAMILIES[about] for about in found if about in KERNEL_FAMILIES), None)


def when_in_words(finding: Finding) -> str:
    """Return its begin, ` since step 9`, or its period, ` every 5 steps`; empty if it is always present."""
    figures = [one.figures for one in finding.evidence if one.kind in {"periodic", "all_pause", "than_before"}]
    every = next((int(of["every"]) for of in figures if of.get("every")), 0)
    if every > 1:
        return f" every {count(every)} steps"
    if finding.until is not None:
        first = "until step" if finding.since is None else f"from step {finding.since} to"
        return f" {first} {finding.until}, over since"
    if finding.since is None:
        return ""
    until = next((int(of["until"]) for of in figures if "until" in of), None)
    return f" since step {finding.since}" if until is None else f" in steps {finding.since} to {until}"


def cause_with_time(finding: Finding) -> str:
    """Return the cause, its kernels and its begin: `compute in attention kernels alone since step 9`."""
    alone = f" in {what} alone" if (what := family_of(finding)) is not None else ""
    return f"{CAUSES[finding.cause].words}{alone}{when_in_words(finding)}"


def of_devices(finding: Finding) -> str | None:
    """Return the sentence about devices that are slower as a whole; None for other findings."""
    shown = next((one for one in finding.evidence if one.kind in _DEVICE), None)
    if shown is None or finding.cause not in {"compute", "device_model"}:
        return None
    template = WholeDevice.throughout if shown.kind == "whole_device" else DeviceModels.models
    return filled(template, {**shown.figures, "ranks": shown.ranks, "about": shown.about})
