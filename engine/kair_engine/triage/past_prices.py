"""Prices what became slow within the recording: its steps replayed with it as it was in the other steps.

Each transfer, or operation, takes what the same call took before in the median; what is shorter anyway stays. So a link
that has no sibling, and a rank that has no peer, have a price all the same.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense
from kair_engine.errors import InputError, UsageError
from kair_engine.frozen import dataclass
from kair_engine.localize.localization import Localization
from kair_engine.ranks import Rank
from kair_engine.results.evidence_kinds import Evidence, PriceRange, WhileSlow
from kair_engine.results.triage import Finding
from kair_engine.results.whatif import FIX_KINDS
from kair_engine.stats import median_by
from kair_engine.triage.replays import Replays
from kair_engine.whatif.model import Baseline, Parts, Transplanted

BY_PAST = "than_before"
"""Evidence of a finding that is compared with its own past."""
Layer = Mapping[int, tuple[Ints, Floats]]
"""Step → (places among its parts, what is added to them, ns)."""


@dataclass(frozen=True)
class Slower:
    """What takes longer in some steps: transfers between ranks, or what ranks compute themselves."""

    links: frozenset[frozenset[Rank]]
    """The ends of the links; of none it is about `ranks`."""
    ranks: frozenset[Rank]
    kind: str
    steps: frozenset[int]


@dataclass(frozen=True)
class PastPrice:
    """What a finding costs by such a replay, µs."""

    saved_us: float
    """Of the mean step of the recording."""
    hidden_us: float
    """The same once all other findings of this kind are undone."""
    shown: tuple[Evidence, ...]


@dataclass(frozen=True)
class PastPrices:
    """The prices of findings by their places, and of all of them together."""

    of: Mapping[int, PastPrice]
    before_us: float = 0.0
    """The mean step as it is."""
    together_us: float = 0.0


def is_by_past(finding: Finding) -> bool:
    """Whether a finding is compared with its own past."""
    return BY_PAST in finding.shows


def slower(finding: Finding, found: Localization) -> Slower:
    """Return what the finding is about, in the steps that it names."""
    ends = [
        frozenset(frozenset(link.ranks) for link in (slow.link, *slow.followers))
        for slow in found.links
        if slow.since is not None and slow.since == finding.since and slow.ends == set(finding.ranks)
    ]
    links: frozenset[frozenset[Rank]] = frozenset().union(*ends) if finding.cause == "communication" else frozenset()
    return Slower(links, frozenset(finding.ranks), finding.cause, frozenset(finding.steps))


def past_prices(replays: Replays, findings: Mapping[int, Finding], found: Localization) -> PastPrices:
    """Prices findings by their places; none where the recording cannot be replayed.

    A price counts delays that began with the finding: a send that queues behind a slow one is late for no reason that
    the recording shows. Without them it is the least that the finding can cost.
    """
    if not findings:
        return PastPrices({})
    about = [slower(one, found) for one in findings.values()]
    every: frozenset[int] = frozenset().union(*(one.steps for one in about))
    try:
        model = replays.model()
        if not model.fits_memory():
            return PastPrices({})
        batches = list(model.parts())
        layers = [_layer(batches, one) for one in about]
        asked = [
            *(Transplanted([layer]) for layer in layers),
            *(Transplanted([layer], one.steps) for layer, one in zip(layers, about, strict=True)),
            *(Transplanted([*layers[:at], *layers[at + 1 :]], _steps_of_others(about, at)) for at in range(len(about))),
        ]
        replayed = model.replay([Baseline.RECORDED, Baseline.DELAYED, Transplanted(layers, every), *asked])
    except (InputError, UsageError):
        return PastPrices({})
    recorded, delayed, together, *times = replayed.times
    before_ns = replays.sample.mean_ns(delayed, replayed.steps)
    result: dict[int, PastPrice] = {}
    for (place, finding), one, least, fixed, without in zip(
        findings.items(), about, times, times[len(about) :], times[2 * len(about) :], strict=False
    ):
        affected = np.isin(replayed.steps, sorted(one.steps))
        if not affected.any():
            continue
        # Steps in which nothing is slow save nothing: of a sample, the affected ones stand for all such.
        part = len(one.steps) / len(found.job.steps)
        saved = [float((a - b)[affected].mean()) / 1e3 for a, b in ((recorded, least), (delayed, fixed))]
        low, high = max(min(saved), 0.0), max(*saved, 0.0)
        shown: list[Evidence] = [WhileSlow(high, len(one.steps), len(found.job.steps), ranks=finding.ranks)]
        if low < high:
            shown.append(PriceRange(low * part, high * part))
        hidden = float((without - together)[affected].mean()) / 1e3
        result[place] = PastPrice(high * part, hidden * part, tuple(shown))
    together_ns = before_ns - replays.sample.mean_ns(together, replayed.steps)
    return PastPrices(result, before_ns / 1e3, together_ns / 1e3)


def _steps_of_others(about: Sequence[Slower], at: int) -> frozenset[int]:
    return frozenset().union(*(one.steps for other, one in enumerate(about) if other != at))


def _layer(batches: Sequence[Parts], about: Slower) -> Layer:
    chosen = [np.flatnonzero(_concerned(parts, about)) for parts in batches]
    step, at, rank, operator, transfer_of = (
        np.concatenate([getattr(parts, name)[rows] for parts, rows in zip(batches, chosen, strict=True)])
        for name in ("step", "at", "rank", "operator", "kind")
    )
    value = np.concatenate([parts.value_ns[rows] for parts, rows in zip(batches, chosen, strict=True)])
    which = np.concatenate([parts.which[:, rows] for parts, rows in zip(batches, chosen, strict=True)], axis=1)
    delay = np.concatenate([parts.delay[rows] for parts, rows in zip(batches, chosen, strict=True)])
    slow = np.isin(step, sorted(about.steps))
    if not slow.any() or slow.all():
        return {}
    call = dense(np.stack((rank, operator, transfer_of, delay.astype(np.int64), *which)))
    usual = np.full(int(call.max()) + 1, np.nan)
    usual[call[~slow]] = median_by(call[~slow], value[~slow])
    less = np.minimum(np.nan_to_num(usual[call] - value, nan=0.0), 0.0)
    return dict(_by_step(step[slow], at[slow], less[slow]))


def _by_step(step: Ints, at: Ints, less: Floats) -> Iterator[tuple[int, tuple[Ints, Floats]]]:
    order = np.argsort(step, kind="stable")
    numbers, first = np.unique(step[order], return_index=True)
    for number, rows in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
        yield number, (at[rows], less[rows])


def _concerned(parts: Parts, about: Slower) -> Bools:
    """Which parts are of it: all members of a link's transfers, or what ranks spend on their own work of a kind."""
    if not about.links:
        kinds = [FIX_KINDS.index(kind) for kind in FIX_KINDS if kind == about.kind]
        mine = np.isin(parts.rank, sorted(about.ranks)) & np.isin(parts.kind, kinds)
        return np.asarray(mine & (parts.transfer == NONE))
    result, rows = np.zeros(len(parts.step), dtype=bool), np.flatnonzero(parts.transfer != NONE)
    if not len(rows):
        return result
    _, of_group = np.unique(np.stack((parts.step[rows], parts.transfer[rows])), axis=1, return_inverse=True)
    of_group = of_group.reshape(-1)
    for ends in about.links:
        members = np.isin(parts.rank[rows], sorted(ends))
        # A transfer is the link's if all of its members are of the link's ranks, and they are as many.
        outside = np.bincount(of_group, weights=~members) > 0
        pairs = np.unique(np.stack((of_group, parts.rank[rows])), axis=1)
        whole = np.bincount(pairs[0], minlength=len(outside)) == len(ends)
        result[rows] |= (~outside & whole)[of_group]
    return result
