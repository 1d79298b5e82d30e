"""A rank's identity as a file: JSON of `RankIdentity` in its job's folder."""

from typing import Any, Final

import msgspec

from kair_engine.trace.identity import DeviceIdentity, RankIdentity, pci_address, uuid_of
from kair_engine.trace.json_text import encode_json
from kair_engine.trace.measures import shown

LARGEST: Final = 1 << 18
"""Bytes of such a file that are read."""
_MOST_RANKS: Final = 1 << 24
_MOST_ENTRIES: Final = 1000


def identity_json(identity: RankIdentity) -> bytes:
    """Return the file's content."""
    return encode_json(identity)


def identity_in(content: bytes) -> RankIdentity | None:
    """Return the identity in a file; None if it is damaged, too large, or has no rank.

    Texts are made one line of bounded length, without control characters. Device names are normalised; invalid ones are
    dropped.
    """
    if len(content) > LARGEST:
        return None
    try:
        found = msgspec.json.decode(content, type=RankIdentity)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return None
    if not 0 <= found.rank < _MOST_RANKS:
        return None
    plain = {name: _plain(value) for name, value in vars(found).items()}
    of = found.device
    plain["device"] = DeviceIdentity(
        uuid=None if of.uuid is None else uuid_of(of.uuid),
        pci=None if of.pci is None else pci_address(of.pci),
        index=of.index,
        ordinal=of.ordinal,
        model=_plain(of.model),
        visible=of.visible,
    )
    return RankIdentity(**plain)


def _plain(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, tuple):
        return tuple(_plain(one) for one in value[: 1 << 14])
    if isinstance(value, dict):
        return {shown(name): shown(of) for name, of in list(value.items())[:_MOST_ENTRIES]}
    return value
