"""Computes the order of an epoch's samples: a permutation by position, the same in every release.

It is a Feistel network over the smallest even number of bits that holds all samples; results outside the range are
permuted again until they are inside (cycle walking: Black and Rogaway 2002). So no rank holds a list of all samples,
and any position can be computed alone. numpy's own permutations may change between releases; its arithmetic does not.
"""

import numpy as np
import numpy.typing as npt

ROUNDS = 6
_MASK = np.uint64(0xFFFFFFFF)
_FIRST, _SECOND = np.uint64(0x9E3779B1), np.uint64(0x85EBCA6B)
_15, _13, _32 = np.uint64(15), np.uint64(13), np.uint64(32)


class Permutation:
    """A permutation of range(samples), different for each seed and epoch."""

    def __init__(self, samples: int, seed: int, epoch: int) -> None:
        """Take `samples`, from 1 to below 2⁶⁴. Raises ValueError for other numbers."""
        if not 0 < samples < 1 << 64:
            raise ValueError(f"there are {samples} samples to permute: it takes at least one")
        self.samples = samples
        self._half = np.uint64(max(1, ((samples - 1).bit_length() + 1) // 2))
        self._low = np.uint64((1 << int(self._half)) - 1)
        self._keys = [np.uint64(_mixed(seed & (1 << 64) - 1, epoch, number)) for number in range(ROUNDS)]

    def of(self, *places: range) -> list[int]:
        """Return the samples at these positions of range(samples): many at once cost little more than a few."""
        place = self._permuted(np.concatenate([np.arange(one.start, one.stop, dtype=np.uint64) for one in places]))
        while (outside := np.flatnonzero(place >= self.samples)).size:
            place[outside] = self._permuted(place[outside])
        return place.tolist()  # type: ignore[no-any-return]

    def _permuted(self, place: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left, right = place >> self._half, place & self._low
        for key in self._keys:
            # A multiplicative mix of 32 bits (as in murmur3's finalizer); wider halves use both words.
            mixed = ((right ^ right >> _32) * _FIRST ^ key) & _MASK
            mixed = (mixed ^ mixed >> _15) * _SECOND & _MASK
            left, right = right, left ^ (mixed ^ mixed >> _13) & self._low
        return left << self._half | right


def _mixed(seed: int, epoch: int, number: int) -> int:
    """Return a 32-bit key by splitmix64's finalizer."""
    value = (seed + (epoch * ROUNDS + number + 1) * 0x9E3779B97F4A7C15) & (1 << 64) - 1
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    value = (value ^ value >> 27) * 0x94D049BB133111EB & (1 << 64) - 1
    return (value ^ value >> 31) & int(_MASK)
