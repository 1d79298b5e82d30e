"""Generates ranks' computing times, step by step, with known kinds of faults, for simulating policies."""

from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints

COMPUTE_S, REST_S = 0.08, 0.02
"""Computing time and remaining time (communication) of a healthy step."""
SAMPLES = 16
"""Initial samples per rank."""
_WHITE, _DRIFT, _DRIFT_STEPS, _REST_NOISE = 0.03, 0.02, 30, 0.03
"""Relative noise: per step, lasting about 30 steps, and of the remaining time."""
_SPIKES, _SPIKE = 0.005, (1.2, 2.0)
"""Share of a rank's steps that are longer, and the range of factors."""
_HEALTHY_GAP, _HEALTHY_STEPS, _HEALTHY_FACTOR = 600.0, (5, 60), (1.1, 1.4)
"""Spells of healthy ranks: mean steps between them, their length in steps, factors."""
_TRANSIENT_GAP, _TRANSIENT_STEPS, _TRANSIENT_FACTOR = 765.0, (20, 150), (1.5, 4.0)
"""The same for transient stragglers, which are slow a tenth of the time."""
_PERSISTENT_FACTOR, _PERSISTENT_FROM = (3.0, 6.0), (0.06, 0.2)
"""Factors of a slow rank in 16, and the range of the job's share after which it is slow."""
_NETWORK_FACTOR, _HOST = 8.0, 8
"""Factor on communication with a slow host; ranks per host."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The faults of a job."""

    name: str
    spells: bool = True
    slow_half: float = 1.0
    """Factor on half of the ranks, always: no restart cures it."""
    transient: bool = False
    persistent: bool = False
    slow_network: bool = False
    fixed_share: float = 0.0
    """Share of computing that does not depend on the batch."""


PATTERNS = (
    Pattern("healthy, no spells", spells=False),
    Pattern("healthy"),
    Pattern("half the ranks × 3", slow_half=3.0),
    Pattern("transient", transient=True),
    Pattern("persistent", persistent=True),
    Pattern("slow network of one host", slow_network=True),
    Pattern("mix", transient=True, persistent=True, slow_network=True),
    Pattern("mix, 40 % independent of the batch", transient=True, persistent=True, slow_network=True, fixed_share=0.4),
    Pattern("persistent, 40 % independent of the batch", persistent=True, fixed_share=0.4),
)
"""Kinds of faulty jobs; "mix" has transient and persistent stragglers, and a slow network."""


def pattern(name: str) -> Pattern:
    """Return the pattern with that name. Raises KeyError."""
    return {one.name: one for one in PATTERNS}[name]


@dataclass(frozen=True, slots=True)
class Conditions:
    """A job that can run with any sizes: computing (steps × ranks) and remaining time (steps) at its initial sizes.

    Restarting a rank cures its persistent slowness, `factor` from the step `slow_from` on; restarting any rank of
    `host` cures the network's.
    """

    compute_s: Floats
    rest_s: Floats
    sizes: Ints
    fixed_samples: Floats
    """Per rank, the samples whose time equals the part that does not depend on samples."""
    slow_from: Ints
    factor: Floats
    host: Ints
    network_from: int
    network_factor: float

    def step(self, step: int, sizes: Ints, micro_batches: Ints, cured: Bools) -> tuple[Floats, float]:
        """Return each rank's seconds of computing in the step with these sizes, and the remaining seconds."""
        sample_s, rest_s = self.sample_s(step, cured)
        return sample_s * (micro_batches * self.fixed_samples + sizes), rest_s

    def sample_s(self, step: int, cured: Bools) -> tuple[Floats, float]:
        """Return each rank's seconds per sample in the step, and the remaining seconds of the step."""
        lasting = np.where((step >= self.slow_from) & ~cured, self.factor, 1.0)
        rest_s = float(self.rest_s[step]) * (self.network_factor if self._network_slow(step, cured) else 1.0)
        return self.compute_s[step] * lasting / (self.fixed_samples + self.sizes), rest_s

    def slow_network(self, step: int, cured: Bools) -> Ints:
        """Return the ranks that a slow network is blamed on in this step."""
        return self.host if self._network_slow(step, cured) else self.host[:0]

    def static_s(self) -> float:
        """Return the seconds of all steps without any action."""
        steps = np.arange(len(self.rest_s))
        lasting = np.where(steps[:, None] >= self.slow_from, self.factor, 1.0)
        samples = self.fixed_samples + self.sizes
        # Rounded as in `step`, so that a policy that does nothing gains nothing.
        compute_s = self.compute_s * lasting / samples * samples
        rest_s = self.rest_s * np.where(steps >= self.network_from, self.network_factor, 1.0)
        return float(sum((compute_s.max(axis=1) + rest_s).tolist()))

    def _network_slow(self, step: int, cured: Bools) -> bool:
        return step >= self.network_from and not cured[self.host].any()


def conditions_of(pattern: Pattern, ranks: int, steps: int, seed: int) -> Conditions:
    """Return a job with the pattern's faults; equal seeds give equal jobs."""
    rng = np.random.default_rng(seed)
    compute = _noise(rng, steps, ranks)
    if pattern.spells:
        _add_spells(rng, compute, _HEALTHY_GAP, _HEALTHY_STEPS, _HEALTHY_FACTOR)
    if pattern.transient:
        _add_spells(rng, compute, _TRANSIENT_GAP, _TRANSIENT_STEPS, _TRANSIENT_FACTOR)
    compute *= COMPUTE_S
    compute[:, rng.permutation(ranks)[: ranks // 2]] *= pattern.slow_half
    slow_from, factor = np.full(ranks, steps), np.ones(ranks)
    if pattern.persistent:
        slow = rng.permutation(ranks)[: max(ranks // 16, 1)]
        slow_from[slow] = (steps * rng.uniform(*_PERSISTENT_FROM, len(slow))).astype(np.int64)
        factor[slow] = rng.uniform(*_PERSISTENT_FACTOR, len(slow))
    host = int(rng.integers(max(ranks // _HOST, 1))) * _HOST
    network_from = int(steps * rng.uniform(*_PERSISTENT_FROM)) if pattern.slow_network else steps
    return Conditions(
        compute_s=compute,
        rest_s=REST_S * np.exp(_REST_NOISE * rng.standard_normal(steps)),
        sizes=np.full(ranks, SAMPLES),
        fixed_samples=np.full(ranks, SAMPLES * pattern.fixed_share / (1 - pattern.fixed_share)),
        slow_from=slow_from,
        factor=factor,
        host=np.arange(host, min(host + _HOST, ranks)),
        network_from=network_from,
        network_factor=_NETWORK_FACTOR,
    )


def recorded_conditions(compute_s: Floats, rest_s: Floats, sizes: Ints, fixed_share: float) -> Conditions:
    """Return a recorded job's conditions. Raises ValueError if its tables do not fit each other."""
    steps, ranks = compute_s.shape
    if rest_s.shape != (steps,) or sizes.shape != (ranks,):
        raise ValueError(f"{steps} steps of {ranks} ranks need as many rests and sizes: {rest_s.shape}, {sizes.shape}")
    return Conditions(
        compute_s=compute_s,
        rest_s=rest_s,
        sizes=sizes,
        fixed_samples=sizes * np.float64(fixed_share / (1 - fixed_share)),
        slow_from=np.full(ranks, steps),
        factor=np.ones(ranks),
        host=np.zeros(0, dtype=np.int64),
        network_from=steps,
        network_factor=1.0,
    )


def _noise(rng: np.random.Generator, steps: int, ranks: int) -> Floats:
    """Return factors around 1 (steps × ranks)."""
    keeps = np.exp(-1 / _DRIFT_STEPS)
    result = rng.standard_normal((steps, ranks))
    result *= _DRIFT * np.sqrt(1 - keeps**2)
    result[0] /= np.sqrt(1 - keeps**2)
    for step in range(1, steps):
        result[step] += keeps * result[step - 1]
    result += _WHITE * rng.standard_normal((steps, ranks))
    np.exp(result, out=result)
    spikes = np.nonzero(rng.random((steps, ranks)) < _SPIKES)
    result[spikes] *= rng.uniform(*_SPIKE, len(spikes[0]))
    return result


def _add_spells(
    rng: np.random.Generator, compute: Floats, gap: float, lasts: tuple[int, int], factor: tuple[float, float]
) -> None:
    """Lengthen random stretches of each rank's steps; the gaps between them are exponentially distributed."""
    steps, ranks = compute.shape
    for rank in range(ranks):
        begin = int(rng.exponential(gap))
        while begin < steps:
            end = begin + int(rng.integers(lasts[0], lasts[1] + 1))
            compute[begin:end, rank] *= rng.uniform(*factor)
            begin = end + int(rng.exponential(gap))
