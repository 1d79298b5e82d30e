"""Changes between runs: of one operator, and of all that takes longer than in a baseline.

By themselves, since `kair localize` and `kair triage` load them though mostly nobody asks for a baseline.
"""

from typing import TYPE_CHECKING, Literal

from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank

if TYPE_CHECKING:
    from kair_engine.results.runs.run_profile import RunProfile

ChangeKind = Literal["compute", "input", "host", "communication"]
ChangeSort = Literal["slower", "faster", "added", "gone"]
Scope = Literal["all_ranks", "host", "ranks"]


@dataclass(frozen=True)
class OperatorChange:
    """An operator (or the time that hosts keep devices idle) that takes longer or shorter, beyond chance.

    Times are the self time of a rank in a step, waiting excluded: means over the ranks concerned of their 20 %-trimmed
    means over steps.
    """

    operator: str | None
    """Null: the time in which the host alone kept its device (or thread) idle, and garbage collection."""
    was: str | None
    """Its name in the base run, where that is another."""
    kind: ChangeKind
    """What the time is."""
    change: ChangeSort
    """Which way it changed."""
    scope: Scope
    """On whom: everybody, all ranks of one host, or some ranks."""
    ranks: tuple[Rank, ...]
    """Whom it concerns; empty where that is everybody."""
    host: str | None
    """Of whose ranks all are concerned, and nobody else."""
    base_us: float
    """In the base run. Where some ranks changed on top of what changed on all, either is as if it had been made where
    the operator takes less: first that of all, then what is on top."""
    new_us: float
    """In the new run; the same."""
    ratio: float | None
    """New over base; null of an operator that the base run lacks."""
    base_calls: float
    """Per step and rank."""
    new_calls: float
    """The same in the new run."""
    p_value: float
    """Family-wise, over all that was compared."""
    step_us: float | None = None
    """What the change adds to the step, by replay: taken out, call by call, of the run where it takes longer; of what
    changes hide for each other all have their part. Null: not replayed."""
    share_of_step: float | None = None
    """The same over the base run's step time."""


@dataclass(frozen=True)
class AgainstBaseline:
    """What takes longer than in a baseline: what peers that are slow alike cannot show."""

    baseline: str
    """Its name."""
    step_change_us: float
    """This run's step time less the baseline's."""
    step_change_share: float
    """The same over the baseline's step time."""
    step_p_value: float
    """That the step times do not differ."""
    slower: tuple[OperatorChange, ...]
    """Beyond chance, what takes most longer first; of communication the transfer itself, waiting excluded. Not
    replayed."""


@dataclass(frozen=True)
class ChosenBaseline:
    """The baseline that a run is to be held against."""

    name: str
    profile: "RunProfile"
    named: bool
    """Whether somebody asked for it, and did not just leave it in use."""
