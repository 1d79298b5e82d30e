"""Lists what can be compared between ranks: devices, cores, versions, environments and settings, as texts.

A rank's number, host, process and device differ by nature, and are not compared.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from kair_engine.evidence.own_values import Key, compared, pattern_of, without_host
from kair_engine.frozen import dataclass
from kair_engine.trace.identity import RankIdentity

UNSET: Final = "(unset)"


@dataclass(frozen=True)
class Trait:
    """One property, for all ranks where it is known."""

    what: str
    """Its name: `environment NCCL_ALGO`."""
    values: Mapping[int, str]
    """rank → its value, as users see it."""
    keys: Mapping[int, Key]
    """rank → the compared form of that."""
    forms: Mapping[int, Key] | None = None
    """rank → its text without all that may be the rank's own, if some may be."""
    may_be_of_role: bool = False
    """Whether roles may differ by design: variables, images and devices may, drivers and governors may not."""
    by_place: bool = False
    """Whether it follows the local rank, so that only equal local ranks are compared."""


_PATTERNS: Final[Mapping[str, Callable[[RankIdentity], str | None]]] = {
    "list of NICs": lambda one: ", ".join(one.nics) or None,
    "cgroup": lambda one: one.cgroup,
}
_MAPPINGS: Final[Mapping[str, Callable[[RankIdentity], Mapping[str, str]]]] = {
    "versions": lambda one: one.versions,
    "settings": lambda one: one.settings,
}


def traits_of(identities: Mapping[int, RankIdentity], variables: Iterable[str] = ()) -> Iterator[Trait]:
    """Yield every property that is known of some rank.

    `variables` are included even if no rank sets them, as unset.
    """
    yield _plain("device model", _known(identities, lambda one: one.device.model), may_be_of_role=True)
    yield _plain("number of cores", _known(identities, lambda one: str(len(one.cpus)) if one.cpus else None))
    for what, of in _PATTERNS.items():
        values = _known(identities, of)
        yield Trait(what, values, {rank: (pattern_of(text),) for rank, text in values.items()})
    nodes = _known(identities, lambda one: None if one.numa_node is None else str(one.numa_node))
    yield Trait("NUMA node", nodes, {rank: (text,) for rank, text in nodes.items()}, by_place=True)
    container = _known(identities, lambda one: one.container)
    forms = _forms(container, identities)
    yield Trait("container", container, compared(container, identities), forms, may_be_of_role=True)
    for what, mapping_of in _MAPPINGS.items():
        for name in sorted({name for one in identities.values() for name in mapping_of(one)}):
            values = {rank: having[name] for rank, one in identities.items() if name in (having := mapping_of(one))}
            yield _plain(f"{what} {name}", values)
    yield from _environment(identities, variables)


def _environment(identities: Mapping[int, RankIdentity], variables: Iterable[str]) -> Iterator[Trait]:
    """Yield environment variables; where a rank lacks one it is unset, if any of its environment is known."""
    environments = {rank: one.environment for rank, one in identities.items() if one.environment}
    for name in sorted({*variables, *(name for of in environments.values() for name in of)}):
        values = {rank: of.get(name, UNSET) for rank, of in environments.items()}
        having = {rank: of[name] for rank, of in environments.items() if name in of}
        unset: dict[int, Key] = dict.fromkeys(values, (UNSET, UNSET))
        keys, forms = unset | compared(having, identities), unset | _forms(having, identities)
        yield Trait(f"environment {name}", values, keys, forms, may_be_of_role=True)


def _forms(texts: Mapping[int, str], identities: Mapping[int, RankIdentity]) -> dict[int, Key]:
    return {rank: (pattern_of(without_host(text, identities[rank].host)),) for rank, text in texts.items()}


def _known(identities: Mapping[int, RankIdentity], of: Callable[[RankIdentity], str | None]) -> dict[int, str]:
    texts = ((rank, of(one)) for rank, one in sorted(identities.items()))
    return {rank: text for rank, text in texts if text is not None}


def _plain(what: str, values: Mapping[int, str], *, may_be_of_role: bool = False) -> Trait:
    return Trait(what, values, {rank: (text,) for rank, text in values.items()}, may_be_of_role=may_be_of_role)
