"""How long the mean rank waits for the last of n, by how their noise is distributed.

Between ranks: what each differs by for good, what the ranks of a host share, and what each has alone, which is
independent. What all ranks share makes nobody wait.
"""

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.forecast.tails import Tail
from kair_engine.frozen import dataclass

_LEVELS, _BINS = 60, 12
_FARTHEST = 1e-7
"""Chance that the last of all ranks is later than the integral goes; what lies beyond is added in closed form."""
_ONE = np.zeros(1)


@dataclass(frozen=True)
class Noise:
    """Of one meeting of all ranks, in any unit of time."""

    own: Tail
    """What a rank has alone."""
    shared: Tail | None = None
    """What the ranks of a host have in common; None: nothing, or it is not known."""

    def waiting(self, lasting: Floats, per_host: float) -> float:
        """E[the last of n ranks] − E[a rank]: how long the mean rank waits.

        `lasting` (n) is what each rank differs by in every step; `per_host` so many of them run on a host.
        """
        if len(lasting) == 1:
            return 0.0
        return self._last(np.sort(lasting), per_host) - self._mean() - float(lasting.mean())

    def _mean(self) -> float:
        return self.own.mean + (0.0 if self.shared is None else float(np.dot(*self._hosts(1.0))))

    def _last(self, differ: Floats, per_host: float) -> float:
        """Return the integral of 1 − P(all ranks are before t), by trapezoids."""
        n = len(differ)
        of_hosts, weights = self._hosts(n / per_host)
        places, each = _grouped(differ)
        beyond = np.concatenate((np.linspace(1 - 1e-9, 0.02, _LEVELS), np.geomspace(0.02, _FARTHEST / n, _LEVELS)[1:]))
        alone = self.own.at_level(beyond)
        low, high = alone[0] + places[0] + of_hosts[0], alone[_LEVELS] + places[-1] + of_hosts[-1]
        far = alone + places[-1]
        at = np.unique(np.concatenate((far + of_hosts[-1], far, np.linspace(low, high, 2 * _LEVELS))))
        at = at[at >= low]

        def mean_log(limit: Floats) -> Floats:
            """Return the logarithm of the chance that a rank is before it, averaged over the ranks."""
            chance = self.own.below(limit[:, None] - places)
            return np.asarray(np.log(np.maximum(chance, 1e-300)) @ each)

        on_host = min(max(per_host, 1.0), n)
        of_host = sum(weight * np.exp(on_host * mean_log(at - h)) for h, weight in zip(of_hosts, weights, strict=True))
        after = 1 - np.asarray(of_host) ** (n / on_host)
        beyond_all = n * self.own.mean_beyond(float(at[-1] - places[-1] - of_hosts[-1]))
        return float(low + ((after[1:] + after[:-1]) / 2 * np.diff(at)).sum() + beyond_all)

    def _hosts(self, hosts: float) -> tuple[Floats, Floats]:
        """(points, weights) of what hosts have in common, finer where the last of so many lies."""
        if self.shared is None:
            return _ONE, np.ones(1)
        far = np.geomspace(1 / _BINS, 1e-3 / max(hosts, 1.0), _BINS)
        edges = np.unique(np.concatenate(((0.0,), far, np.linspace(1 / _BINS, 1.0, _BINS))))
        middles = (edges[1:] + edges[:-1]) / 2
        return self.shared.at_level(middles)[::-1], np.diff(edges)[::-1]


def _grouped(differ: Floats) -> tuple[Floats, Floats]:
    """(places, their parts of the ranks): those farthest behind each by itself, of the others neighbours together."""
    if differ[0] == differ[-1]:
        return differ[:1], np.ones(1)
    groups = [*np.array_split(differ[:-_BINS], min(_BINS, max(len(differ) - _BINS, 1))), *differ[-_BINS:, None]]
    groups = [one for one in groups if len(one)]
    return np.array([one.mean() for one in groups]), np.array([len(one) for one in groups]) / len(differ)
