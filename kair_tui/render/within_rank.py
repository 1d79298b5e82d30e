"""What of a rank's kernels takes longer than its peers', and what does not, in words; and what follows from that."""

from collections.abc import Callable, Mapping
from typing import Final

from kair_engine.causes import CAUSES
from kair_engine.results.triage import Evidence, Finding
from kair_tui.render.text import short_name
from kair_tui.render.units import count, duration, its, percent, plural, ranks_in_words, ratio

_FAMILIES: Final[Mapping[str, str]] = {
    "attention": "attention kernels",
    "experts": "kernels of experts",
    "lookups": "kernels that look up rows",
    "selections": "kernels that sort or select",
    "matrix_products": "matrix products",
    "copies": "copies between host and device",
    "arithmetic": "compute-bound kernels",
    "memory": "memory-bound kernels",
}
_SO: Final[Mapping[str, str]] = {
    "copies": "the link, not the device",
    "arithmetic": "the device's clock, as its power, temperature or settings have it",
    "memory": "the device's memory",
}
"""Family → what is slow there; of the others it is not the device."""
_ADVICE: Final[Mapping[str, str]] = {
    "attention": (
        "What attention takes depends on data that no shape tells: compare how sequences are packed on {who} and on a "
        "peer (cu_seqlens, document lengths; work goes with the sum of their squares), and pack them evenly."
    ),
    "experts": (
        "What experts take depends on how many tokens they are given: compare tokens per expert on {who} and on a "
        "peer, then look at the capacity factor, the load-balancing loss and where experts are placed."
    ),
    "lookups": (
        "What lookups take depends on which rows are asked for: compare the indices on {who} and on a peer (how many, "
        "how often the same ones), and how tables are dealt out to ranks."
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
"""Family of kernels → the suggestion where these alone are slower."""
_ONE_KERNEL: Final = (
    "Compare what {who} computes there{operator}, and how it was tuned (autotuning, versions, layout), with a peer: "
    "all other kernels run as fast as there, so that the device as a whole is not slow."
)
_DEVICE: Final = frozenset({"whole_device", "device_models"})


def advice(finding: Finding) -> str | None:
    """Return the suggestion that follows from what is slower and what is not; None where the cause's own holds."""
    for one in finding.evidence:
        if one.kind == "one_kernel" or (one.kind == "one_family" and one.about == "matrix_products"):
            return _ONE_KERNEL
        if one.kind == "one_family":
            return _ADVICE.get(str(one.about))
    return None


def family_of(finding: Finding) -> str | None:
    """Return the kernels that alone are slower, `attention kernels`; None where no family of them is."""
    found = (str(one.about) for one in finding.evidence if one.kind == "one_family" and one.about != "copies")
    return next((_FAMILIES[about] for about in found if about in _FAMILIES), None)


def when_in_words(finding: Finding) -> str:
    """Return since when it is there, ` since step 9`, or how often it comes, ` every 5 steps`; empty where always."""
    figures = [one.figures for one in finding.evidence if one.kind in {"periodic", "all_pause", "than_before"}]
    every = next((int(of["every"]) for of in figures if of.get("every")), 0)
    if every > 1:
        return f" every {count(every)} steps"
    if finding.since is None:
        return ""
    until = next((int(of["until"]) for of in figures if "until" in of), None)
    return f" since step {finding.since}" if until is None else f" in steps {finding.since} to {until}"


def cause_with_time(finding: Finding) -> str:
    """`compute in attention kernels alone since step 9`: the cause, in which kernels, and since when."""
    alone = f" in {what} alone" if (what := family_of(finding)) is not None else ""
    return f"{CAUSES[finding.cause].words}{alone}{when_in_words(finding)}"


def kernels_in_words(what: str) -> str:
    """Return what a family of kernels is called, `attention kernels`; of an operator its short name."""
    return _FAMILIES.get(what) or short_name(what)


def kernels_take(what: str) -> str:
    """`attention kernels take`, `aten::mm takes`."""
    return f"{kernels_in_words(what)} {'take' if what in _FAMILIES else 'takes'}"


def of_devices(finding: Finding) -> str | None:
    """Return the sentence about devices that are slower as a whole; None where the finding is about no such ones."""
    shown = next((one for one in finding.evidence if one.kind in _DEVICE), None)
    if shown is None or finding.cause not in {"compute", "device_model"}:
        return None
    return _slower_throughout(shown) if shown.kind == "whole_device" else _slower_models(shown)


def _slower_throughout(one: Evidence) -> str:
    """`rank 77 computes 1.30× as long as its 31 peers, in every kernel: the device, not the code`."""
    what = "the devices" if len(one.ranks) > 1 else "the device"
    return f"{_as_long(one)}, in every kernel: {what}, not the code"


def _slower_models(one: Evidence) -> str:
    """`ranks 4-7 on NVIDIA A100-SXM4-80GB compute 2.08× as long as their 4 peers on NVIDIA H100 80GB HBM3`."""
    mine, _, theirs = str(one.about).partition("; ")
    return f"{_as_long(one, f' on {mine}')} on {theirs.removeprefix(_OF_PEERS)}"


_OF_PEERS: Final = "peers' "


def _as_long(one: Evidence, on: str = "") -> str:
    peers = int(one.figures["peers"])
    beside = f"{its(one.ranks)} {'peer' if peers == 1 else plural(peers, 'peer')}"
    return f"{ranks_in_words(one.ranks)}{on} {_verb(one, 'compute')} {ratio(one.figures['ratio'])} as long as {beside}"


def _whole_device(one: Evidence) -> str:
    kernels = plural(int(one.figures["kernels"]), "kernel")
    return f"{_slower_throughout(one)} ({_range(one)} in the {kernels} that take most)"


def _device_models(one: Evidence) -> str:
    kernels = f" ({_range(one)} in single kernels)" if "least_ratio" in one.figures else ""
    return f"{_slower_models(one)}{kernels}"


def _range(one: Evidence) -> str:
    return f"{ratio(one.figures['least_ratio'])} to {ratio(one.figures['most_ratio'])}"


def _one_family(one: Evidence) -> str:
    what = kernels_in_words(str(one.about))
    longer, excess = ratio(one.figures["ratio"]), duration(one.figures["excess_us_per_step"])
    share, others = percent(one.figures["others_share"]), ratio(one.figures["others_ratio"])
    computes = "it computes" if len(one.ranks) == 1 else "they compute"
    so = _SO.get(str(one.about), "not the device")
    return (
        f"{ranks_in_words(one.ranks)} {_verb(one, 'take')} {excess} a step longer in {what} alone ({longer}); all "
        f"other kernels, {share} of what {computes}, take {others} as long as on {its(one.ranks)} peers: {so}"
    )


def _verb(one: Evidence, verb: str) -> str:
    return f"{verb}s" if len(one.ranks) == 1 else verb


SENTENCES: Final[Mapping[str, Callable[[Evidence], str]]] = {
    "whole_device": _whole_device,
    "device_models": _device_models,
    "one_family": _one_family,
    "one_kernel": _one_family,
}
