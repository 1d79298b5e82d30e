"""Packs settings that ranks get during the job into one word of shared memory and of a datagram.

It also names the extra data of a window that a user requests.
"""

from dataclasses import dataclass
from enum import IntFlag
from typing import Final

MILLION: Final = 1_000_000
_OFF, _HAS_EVERY, _HAS_SHARE, _ON = 1, 2, 4, 8
_SHARE_AT, _EVERY_AT = 8, 32
_MOST_SHARE: Final = (1 << 20) - 1
MOST_EVERY: Final = (1 << 32) - 1


class ProfileOptions(IntFlag):
    """Extra data of one window, by the names of `kair capture now`. Each makes its steps longer."""

    STACKS = 1
    """Python's calls."""
    MEMORY = 2
    """Allocations."""
    SHAPES = 4
    """The shapes of operators' tensors."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return `stacks`, `memory`, `shapes`."""
        return tuple(one.name.lower() for one in ProfileOptions if one in self and one.name is not None)


NOTHING_MORE: Final = ProfileOptions(0)
EVERYTHING: Final = ProfileOptions.STACKS | ProfileOptions.MEMORY | ProfileOptions.SHAPES


def options_of(names: tuple[str, ...]) -> ProfileOptions:
    """Return the reverse of `names`; unknown names are ignored."""
    return ProfileOptions(sum(one for one in ProfileOptions if one.name is not None and one.name.lower() in names))


def options_in(number: int) -> ProfileOptions:
    """Return the options in a datagram or shared memory, without unknown bits."""
    return ProfileOptions(number & int(EVERYTHING))


@dataclass(frozen=True)
class RankControl:
    """Settings of a rank; None means as its process was started."""

    is_on: bool | None = None
    """Whether anything is recorded."""
    sample_every: int | None = None
    """Interval, in steps, of unasked sampling; 0 for never."""
    max_overhead: float | None = None
    """Share of its time that this may take; kept in millionths."""

    def packed(self) -> int:
        """Return 64 bits; 0 if nothing was set."""
        word = 0 if self.is_on is None else _ON if self.is_on else _OFF
        if self.sample_every is not None:
            word |= _HAS_EVERY | min(self.sample_every, MOST_EVERY) << _EVERY_AT
        if self.max_overhead is not None:
            word |= _HAS_SHARE | min(round(self.max_overhead * MILLION), MILLION) << _SHARE_AT
        return word

    @classmethod
    def read(cls, word: int) -> "RankControl":
        """Return the settings in any 64 bits."""
        every = word >> _EVERY_AT & MOST_EVERY if word & _HAS_EVERY else None
        share = min(word >> _SHARE_AT & _MOST_SHARE, MILLION) / MILLION if word & _HAS_SHARE else None
        is_on = False if word & _OFF else True if word & _ON else None
        return cls(is_on, every, share)
