"""Recordings that could have been made of the same job, drawn from one that was.

What a rank differs in for good stays; what changes from step to step is drawn again (bootstrap over steps). Without
that separation the noise of the recording would count twice, and a longer one would seem to hold it for good. Steps
are drawn in blocks as long as they depend on one another: slowness that comes in spells does so in what is drawn.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.localize.excess_table import ExcessTable, OperatorTable
from kair_engine.localize.noise import inflation
from kair_engine.stats import TRIM, trimmed_mean

_TRIED = 100
"""Draws that the noise of a mean is known from."""


@dataclass(frozen=True)
class Draw:
    """One recording: the recorded steps it consists of, as many as the longest has, and who differs in it like whom.

    A rank that a fault was taken out of differs from its peers like another one does, since its own way is not known.
    """

    steps: Ints
    like: Ints


@dataclass(frozen=True)
class Separated:
    """A quantity per rank, taken apart."""

    lasting: Floats
    """(… × ranks)."""
    changing: Floats
    """(steps × … × ranks)."""

    def drawn(self, draw: Draw, steps: int) -> Floats:
        """The quantity in the first `steps` steps of a drawn recording."""
        return np.asarray(self.lasting[..., draw.like] + self.changing[draw.steps[:steps]])

    def of(self, row: int) -> "Separated":
        """One of several quantities that were taken apart together."""
        return Separated(self.lasting[row], self.changing[:, row])


@dataclass(frozen=True)
class Source:
    """A healthy job that recordings are drawn from."""

    table: ExcessTable
    classes: Separated
    operators: Mapping[str, Separated]
    block: int = 1
    """Steps that are drawn together."""

    def recording(self, draw: Draw, steps: int) -> ExcessTable:
        """The first `steps` steps of a drawn recording."""
        of_operator = {
            name: OperatorTable(one.fetches, self.operators[name].drawn(draw, steps), one.typical_ns)
            for name, one in self.table.of_operator.items()
        }
        times = self.table.step_times_ns[draw.steps[:steps]]
        return replace(
            self.table, by_step_ns=self.classes.drawn(draw, steps), step_times_ns=times, of_operator=of_operator
        )


def source_of(table: ExcessTable, known: Bools, random: np.random.Generator) -> Source:
    """Takes a job's excesses apart; ranks that are not `known` (a fault was taken out of them) tell nothing."""
    parts = [take_apart(table.by_step_ns[:, row], table.role, known, random) for row in range(len(table.work_ns))]
    return Source(
        table,
        Separated(np.stack([one.lasting for one in parts]), np.stack([one.changing for one in parts], axis=1)),
        {name: take_apart(one.excess_ns, table.role, known, random) for name, one in table.of_operator.items()},
        max(block_of(table.by_step_ns[:, row]) for row in range(len(table.work_ns))),
    )


def block_of(per_step: Floats) -> int:
    """For how many steps on end those of (steps × ranks) depend on one another, as far as a mean is concerned."""
    return max(round(inflation(per_step)), 1)


def in_blocks(recorded: int, count: int, block: int, random: np.random.Generator) -> Ints:
    """`count` of the recorded steps in blocks; what follows the last step is the first one (circular blocks)."""
    begins = random.integers(recorded, size=-(-count // block))
    return np.asarray((begins[:, None] + np.arange(block)).reshape(-1)[:count] % recorded)


def draw_steps(
    recorded: int, longest: int, family: Ints, known: Bools, *, block: int, random: np.random.Generator
) -> Draw:
    """A recording of `longest` steps; a shorter one is its beginning."""
    like = np.arange(len(family))
    for place in np.flatnonzero(~known):
        peers = np.flatnonzero((family == family[place]) & known)
        if len(peers):
            like[place] = random.choice(peers)
    return Draw(in_blocks(recorded, longest, block, random), like)


def take_apart(
    values: Floats, family: Ints, known: Bools, random: np.random.Generator, trim: float = TRIM
) -> Separated:
    """`values` (steps × ranks) as what lasts and what changes; ranks of one `family` are compared with each other.

    The variance between the ranks' means is what lasts plus the noise of a mean, which a bootstrap shows: the ranks'
    distances from their family's mean are shrunk by the root of the lasting share.
    """
    steps, mean = len(values), trimmed_mean(values, trim, axis=0)
    # Deviations from their own mean are too small by this factor.
    changing = (values - mean) * math.sqrt(steps / max(steps - 1, 1))
    block = block_of(values)
    again = [trimmed_mean(changing[in_blocks(steps, steps, block, random)], trim, axis=0) for _ in range(_TRIED)]
    between, of_noise = _within(mean[None], family, known), _within(np.stack(again), family, known)
    share = math.sqrt(max(0.0, 1 - of_noise / between)) if between > 0 else 0.0
    lasting = mean.copy()
    for code in np.unique(family[known]):
        peers = np.flatnonzero((family == code) & known)
        centre = mean[peers].mean()
        lasting[peers] = centre + share * (mean[peers] - centre)
    return Separated(lasting, changing)


def lasting_spread(parts: Separated, family: Ints, known: Bools) -> float:
    """The standard deviation of what lasts, within the families."""
    return math.sqrt(_within(parts.lasting[None], family, known))


def _within(values: Floats, family: Ints, known: Bools) -> float:
    """Variance between the known ranks of a family, pooled over families and averaged over the first axis."""
    squares, df = 0.0, 0
    for code in np.unique(family[known]):
        of_family = values[:, known & (family == code)]
        squares += float(((of_family - of_family.mean(axis=1, keepdims=True)) ** 2).sum(axis=1).mean())
        df += of_family.shape[1] - 1
    return squares / df if df else 0.0
