"""Ranks' identities for people: their shared software, and the devices of each host."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kair_engine.trace.identity import DeviceIdentity, RankIdentity
from kair_tui.render.units import plural, ranks_in_words, spans

_NAMES: Final[Mapping[str, str]] = {
    "framework": "",
    "nccl": "NCCL",
    "cuda": "CUDA",
    "cuda_driver": "CUDA driver",
    "driver": "driver",
    "hip": "HIP",
    "hip_driver": "HIP driver",
    "cann": "CANN",
    "cupti": "CUPTI",
    "python": "Python",
    "kernel": "kernel",
    "os": "",
}
"""Names of software, in the order of listing; '' for names that are part of the version."""


def identity_facts(identities: Sequence[RankIdentity]) -> list[tuple[str, list[str]]]:
    """Return (label, its lines): software, environment and devices; unknown ones are left out."""
    facts = [
        ("software", _shared(identities)),
        ("", list(_different(identities))),
        ("scheduler", _scheduled(identities)),
        ("environment", _environment(identities)),
        ("devices", list(_devices(identities))),
    ]
    return [(label, lines) for label, lines in facts if lines]


def _by_value(identities: Sequence[RankIdentity]) -> dict[str, dict[str, list[int]]]:
    """Return name of software → version → its ranks."""
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for one in identities:
        for name, version in one.versions.items():
            found[name][version].append(one.rank)
    known = list(_NAMES)
    order = sorted(found, key=lambda name: (known.index(name) if name in _NAMES else len(known), name))
    return {name: found[name] for name in order}


def _shared(identities: Sequence[RankIdentity]) -> list[str]:
    """Return the software that all ranks with a record share."""
    same = [_called(name, next(iter(of))) for name, of in _by_value(identities).items() if len(of) == 1]
    return [", ".join(same)] if same else []


def _different(identities: Sequence[RankIdentity]) -> Iterator[str]:
    for name, of in _by_value(identities).items():
        if len(of) > 1:
            usual_first = sorted(of.items(), key=lambda item: (-len(item[1]), item[0]))
            parts = (f"{_called(name, version)} on {ranks_in_words(tuple(ranks))}" for version, ranks in usual_first)
            yield f"differs: {'; '.join(parts)}"


def _scheduled(identities: Sequence[RankIdentity]) -> list[str]:
    """Return the schedulers' units that all share, by name; of others the number."""
    units = [set(one.scheduled) for one in identities if one.scheduled]
    shared = sorted(set.intersection(*units)) if units else []
    kinds = Counter(name.partition(":")[0] for name in {name for of in units for name in of} - {*shared})
    parts = [name.replace(":", " ", 1) for name in shared] + [plural(of, kind) for kind, of in sorted(kinds.items())]
    return [", ".join(parts)] if parts else []


def _called(name: str, version: str) -> str:
    return f"{_NAMES.get(name, name)} {version}".strip()


def _environment(identities: Sequence[RankIdentity]) -> list[str]:
    """Return how many variables that change how a rank runs are known, and how many of them differ between ranks."""
    known = [one.environment for one in identities if one.environment]
    names = sorted({name for of in known for name in of})
    if not names:
        return []
    text = plural(len(names), "variable")
    different = [name for name in names if len({of.get(name) for of in known}) > 1]
    if len(known) == 1:
        return [text]
    return [
        f"{text}, {f'{len(different)} of them not the same on all ranks' if different else 'the same on all ranks'}"
    ]


def _devices(identities: Sequence[RankIdentity]) -> Iterator[str]:
    """Yield a line for each device that can be looked up.

    Others share one line per host and model.
    """
    of_host: dict[str, list[RankIdentity]] = defaultdict(list)
    for one in sorted(identities, key=lambda one: one.rank):
        of_host[one.host or ""].append(one)
    for host, some in of_host.items():
        lead = f"{host}: " if host else ""
        alike: dict[str, list[RankIdentity]] = defaultdict(list)
        for one in some:
            if words := replace(one, host=None).device_in_words():
                yield f"{lead}rank {one.rank} {words}{f', {one.device.model}' if one.device.model else ''}"
            elif one.device != DeviceIdentity():
                alike[one.device.model or "device"].append(one)
        for model, members in alike.items():
            yield f"{lead}{ranks_in_words(tuple(one.rank for one in members))} {model}{_ordinals(members)}"


def _ordinals(some: Sequence[RankIdentity]) -> str:
    """Return which of the devices that each process sees is its rank's: ` (0-7 as their processes count)`."""
    numbers = [one.device.ordinal for one in some if one.device.ordinal is not None]
    if not numbers or len(numbers) < len(some):
        return ""
    if len(set(numbers)) == 1:
        shown = str(numbers[0])
    elif numbers == sorted(set(numbers)):
        shown = spans(tuple(numbers))
    else:
        shown = ", ".join(map(str, numbers))
    return f" ({shown} as {'its process counts' if len(some) == 1 else 'their processes count'})"
