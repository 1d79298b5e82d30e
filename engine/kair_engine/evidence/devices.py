"""Adds the devices that the ranks of findings run on, by the names that users look them up by."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from kair_engine.results.triage import Finding, TriageResult
from kair_engine.trace.identity import RankIdentity

_MOST_SEEN_ON: Final = 8
"""A finding that blames no rank but shows on more ranks than this names no devices."""


def with_devices(result: TriageResult, identities: Mapping[int, RankIdentity]) -> TriageResult:
    """Return the same verdict; each finding has its ranks' devices, as far as `identities` (by rank) know them.

    A finding that blames no rank lists the devices of the ranks it was seen on, unless there are too many.
    """
    if not identities:
        return result
    return replace(result, findings=tuple(_with_devices(finding, identities) for finding in result.findings))


def _with_devices(finding: Finding, identities: Mapping[int, RankIdentity]) -> Finding:
    seen_on = finding.seen_on if len(finding.seen_on) <= _MOST_SEEN_ON else ()
    return replace(finding, devices=devices_of(finding.ranks or seen_on, identities))


def devices_of(ranks: Iterable[int], identities: Mapping[int, RankIdentity]) -> tuple[str, ...]:
    """Return `node-7 GPU 3, GPU-5f3e…, 0000:1b:00.0` for each rank with a known device, each device once."""
    known = (identities[rank].device_in_words() for rank in ranks if rank in identities)
    return tuple(dict.fromkeys(words for words in known if words))


def hosts_of(ranks: Iterable[int], identities: Mapping[int, RankIdentity]) -> tuple[str, ...]:
    """Return the known hosts of these ranks, each once."""
    return tuple(dict.fromkeys(host for rank in ranks if (host := identities[rank].host) is not None))
