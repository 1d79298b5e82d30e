"""On which devices the ranks of findings run, in the words that one looks a device up by."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from kair_engine.results.triage import Finding, TriageResult
from kair_engine.trace.identity import RankIdentity

_MOST_SEEN_ON: Final = 8
"""Ranks on which something shows though nobody is to blame: of more of them no device is singled out."""


def with_devices(result: TriageResult, identities: Mapping[int, RankIdentity]) -> TriageResult:
    """Return the same verdict, each finding with the devices of its ranks, as far as `identities` (by rank) tell them.

    A finding that blames nobody names those of the ranks that it was seen on, unless these are many.
    """
    if not identities:
        return result
    return replace(result, findings=tuple(_with_devices(finding, identities) for finding in result.findings))


def _with_devices(finding: Finding, identities: Mapping[int, RankIdentity]) -> Finding:
    seen_on = finding.seen_on if len(finding.seen_on) <= _MOST_SEEN_ON else ()
    return replace(finding, devices=devices_of(finding.ranks or seen_on, identities))


def devices_of(ranks: Iterable[int], identities: Mapping[int, RankIdentity]) -> tuple[str, ...]:
    """`node-7 GPU 3, GPU-5f3e…, 0000:1b:00.0` of each rank whose device is known, each device once."""
    known = (identities[rank].device_in_words() for rank in ranks if rank in identities)
    return tuple(dict.fromkeys(words for words in known if words))


def hosts_of(ranks: Iterable[int], identities: Mapping[int, RankIdentity]) -> tuple[str, ...]:
    """Those that are known of these ranks, each once."""
    return tuple(dict.fromkeys(host for rank in ranks if (host := identities[rank].host) is not None))
