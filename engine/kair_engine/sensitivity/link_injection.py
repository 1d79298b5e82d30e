"""One slow link in a drawn recording, and whether stage 1 names it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, LINK_SHARE, SMALLEST_SHARE
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.links import FEWEST_SIBLINGS, Link, OwnTime, SlowLink, slow_links
from kair_engine.sensitivity.bootstrap import Draw, Separated, block_of, take_apart


@dataclass(frozen=True)
class HealthyLinks:
    """What the links with siblings spent in transfers themselves, those that are slow as fast as their siblings."""

    links: tuple[Link, ...]
    example: tuple[OwnTime, ...]
    """One step's of each."""
    expected_ns: Floats
    """Per link and step, in the mean."""
    ratios: Separated
    """Self time over expected, per link."""
    family: Ints
    known: Bools
    """False where a fault was taken out of the link."""
    step_time_ns: float
    block: int
    """Steps that are drawn together."""

    @property
    def comparable(self) -> Ints:
        """Those whose family is large enough for a test."""
        return np.flatnonzero(np.bincount(self.family)[self.family] >= FEWEST_SIBLINGS)

    @property
    def own_ns(self) -> Floats:
        """Per link and step, without a fault."""
        return np.asarray(self.ratios.lasting * self.expected_ns)


def healthy_links(job: JobExcess, slow: Iterable[SlowLink], random: np.random.Generator) -> HealthyLinks | None:
    """The job's links without what the slow ones take longer; None where none can be compared."""
    names = dict.fromkeys(link for step in job.steps for link in step.links)
    times = {link: [step.links.get(link) for step in job.steps] for link in names}
    if not times:
        return None
    example = tuple(next(one for one in of_step if one is not None) for of_step in times.values())
    number = {family: code for code, family in enumerate(dict.fromkeys(one.family for one in example))}
    own, expected = (
        np.array([[np.nan if one is None else getattr(one, name) for one in of_step] for of_step in times.values()])
        for name in ("own_ns", "expected_ns")
    )
    mean = np.maximum(np.nanmean(expected, axis=1), 1.0)
    ratios = own / mean[:, None]
    # A step in which a link did nothing says nothing of it.
    ratios = np.where(np.isnan(ratios), np.nanmean(ratios, axis=1)[:, None], ratios)
    slow_ones = {one.link for one in slow}
    known = np.array([link not in slow_ones for link in times])
    ratios[~known] += 1 - ratios[~known].mean(axis=1, keepdims=True)
    family = np.array([number[one.family] for one in example])
    parts = take_apart(ratios.T, family, known, random, trim=0.0)
    found = HealthyLinks(tuple(times), example, mean, parts, family, known, job.step_time_ns, block_of(ratios.T))
    return found if len(found.comparable) else None


def finds_slow_link(links: HealthyLinks, draw: Draw, steps: int, victim: int, size: float) -> bool:
    """Whether a link whose self time grows by `size` (a share of it) is named."""
    siblings = np.flatnonzero(links.family == links.family[victim])
    ratios = links.ratios.drawn(draw, steps)
    ratios[:, victim] *= 1 + size
    expected = links.expected_ns
    recording = [
        {
            links.links[at]: replace(
                links.example[at], own_ns=float(in_step[at] * expected[at]), expected_ns=float(expected[at])
            )
            for at in siblings
        }
        for in_step in ratios
    ]
    # One family at a time: the other ones' share of the false-alarm rate is taken off by hand.
    p_below = FALSE_ALARM_RATE * LINK_SHARE / (int(links.family.max()) + 1)
    found = slow_links(recording, links.step_time_ns, p_below, SMALLEST_SHARE)
    return any(one.link == links.links[victim] for one in found)
