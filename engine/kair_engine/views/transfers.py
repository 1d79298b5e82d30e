"""Transfers of every process group and link: their sizes, their times, and those of siblings that do the same.

Siblings of a transfer are the n-th of its kind and size among as many ranks, spread over as many hosts.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense, one_of_each
from kair_engine.localize.links import FEWEST_SIBLINGS
from kair_engine.ranks import Rank
from kair_engine.results.collectives import CollectiveKind
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.collectives import ordinal
from kair_engine.trace.model import Job, host_of
from kair_engine.trace.operations import COLLECTIVE, SEND, Operations
from kair_engine.views.sibling_speeds import FEWEST_COMPARED, compare, others_median
from kair_engine.views.transfer_kinds import KINDS, bus_factor, byte_factor, is_rooted, kind_of

_STATED: Final = re.compile(r"\[\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)\s*\]$")
"""How a group's name ends where the recording states its ranks."""
_GROUPED: Final = KINDS.index("grouped_send_recv")
_BETWEEN_TWO: Final = KINDS.index("send_recv")
_ROOTED: Final = tuple(at for at, kind in enumerate(KINDS) if is_rooted(kind))


class Link(NamedTuple):
    """A process group with its recorded members; without a name, and between two, sender and receiver."""

    group: str | None
    ranks: tuple[Rank, ...]
    between_two: bool

    @property
    def members(self) -> int:
        """Its ranks, recorded or not."""
        stated = None if self.group is None else _STATED.search(self.group)
        return max(len(self.ranks), len(set(stated[1].split(","))) if stated else 0)

    def hosts(self, job: Job) -> tuple[int, ...] | None:
        """How many of its recorded members each host has, in order of size; None where a host is not known."""
        hosts = [host_of(job, rank) for rank in self.ranks]
        return None if None in hosts else tuple(sorted(Counter(hosts).values()))


@dataclass(frozen=True)
class Transferred:
    """Transfers of one kind and size class over one link; results/collectives.py describes them."""

    link: Link
    kind: CollectiveKind
    hosts: tuple[int, ...] | None
    size_class: int | None
    """The class holds sizes from 2 to this power up to twice as many bytes."""
    message_bytes: float | None
    calls: float
    transfer_ns: float
    ns_per_step: float
    algorithm_gb_per_s: float | None
    bus_gb_per_s: float | None
    siblings: int
    ratio: float | None
    p_value: float = float("nan")
    """Of this one alone; NaN if no test can show it."""
    steady: bool = False


class _Calls(NamedTuple):
    """Of each transfer a value in every array."""

    step: Ints
    link: Ints
    call: Ints
    """A number of its operator and process group; NONE between two."""
    size: Ints
    """The largest member's bytes, NONE where that is not recorded."""
    own_ns: Ints
    lasted_ns: Ints
    """From its last member's arrival to the end of the last one."""


class _Entries(NamedTuple):
    """The same once it is known what kinds they are."""

    step: Ints
    link: Ints
    kind: Ints
    name: Ints
    """A number of the operator's name if the size is unknown, else NONE: sizes show what is alike."""
    size: Ints
    own_ns: Ints


class Transfers:
    """Takes in steps as they pass."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ranks = np.array(job.ranks, dtype=np.int64)
        self._met: list[_Calls] = []
        self._links: dict[Link, int] = {}
        self._calls: dict[tuple[str | None, str], int] = {}
        self._issued: dict[tuple[str | None, str], int] = {}
        """(process group, kernel) → the kind of the host's operator around its launch."""
        self.waiting_ns = np.zeros(len(job.ranks))
        """Of each rank of the job, in all steps."""

    def __len__(self) -> int:
        return sum(len(calls.step) for calls in self._met)

    def learn(self, ops: Operations) -> None:
        """Look up, by their launches, what kernels are whose name only says that they send and receive.

        NCCL runs an all-to-all so. `ops` may be of some ranks only, in several steps.
        """
        grouped = [code for code, name in ops.name_text.items() if kind_of(name) == KINDS[_GROUPED]]
        rows = np.flatnonzero(np.isin(ops.name, grouped) & (ops.kind == COLLECTIVE) & ops.on_stream)
        if not len(rows):
            return
        for at in one_of_each(dense(np.stack((ops.name[rows], ops.group[rows])))).tolist():
            row = int(rows[at])
            around = int(ops.launch[row])
            while around != NONE:
                kind = kind_of(ops.operator(around))
                if kind not in ("other", KINDS[_GROUPED]):
                    self._issued[ops.group_text.get(int(ops.group[row])), ops.operator(row)] = KINDS.index(kind)
                    break
                around = int(ops.nesting.parent[around])

    def add(self, sync: Synchronisation) -> None:
        """Take in how the ranks of a step met."""
        met, ops = sync.collectives, sync.collectives.ops
        if not len(met):
            return
        wait = np.maximum(ops.duration_ns[met.row] - sync.own_ns[met.instance], 0)
        place = np.searchsorted(self._ranks, ops.ranks[ops.rank[met.row]])
        self.waiting_ns += np.bincount(place, wait, len(self._ranks))
        first = met.row[met.starts]
        between_two = ops.kind[first] != COLLECTIVE
        link = self._links_of(sync, between_two)
        pairs, call = np.unique(np.stack((ops.name[first], ops.group[first])), axis=1, return_inverse=True)
        keys = [(ops.group_text.get(group), ops.name_text[name]) for name, group in pairs.T.tolist()]
        numbers = np.array([self._calls.setdefault(key, len(self._calls)) for key in keys])[call.reshape(-1)]
        size = np.full(len(met), NONE)
        if ops.message_bytes is not None:
            largest = np.maximum.reduceat(ops.message_bytes[met.row], met.starts)
            size = np.where(largest > 0, largest, NONE)
        step, call = np.full(len(met), ops.step), np.where(between_two, NONE, numbers)
        self._met.append(_Calls(step, link, call, size, sync.own_ns, _lasted_ns(sync)))

    def _links_of(self, sync: Synchronisation, between_two: Bools) -> Ints:
        """Per instance the number of its link."""
        met, ops = sync.collectives, sync.collectives.ops
        group = np.where(between_two, NONE, ops.group[met.row[met.starts]])
        sends = ops.kind[met.row] == SEND
        sender = np.full(len(met), NONE)
        sender[met.instance[sends]] = ops.rank[met.row[sends]]
        code = dense(np.stack((group, met.community, between_two, np.where(between_two, sender, NONE))))
        one = one_of_each(code)
        numbers = []
        for instance in one.tolist():
            ranks = ops.ranks[met.members(instance)].tolist()
            if between_two[instance]:
                own = int(ops.ranks[sender[instance]])
                link = Link(None, (Rank(own), *(Rank(of) for of in ranks if of != own)), True)
            else:
                link = Link(ops.group_text.get(int(group[instance])), tuple(map(Rank, sorted(ranks))), False)
            numbers.append(self._links.setdefault(link, len(self._links)))
        of_code = np.empty(len(one), dtype=np.int64)
        of_code[code[one]] = numbers
        return of_code[code]

    def _entries(self) -> _Entries:
        """Find the kinds of all transfers, and by these how large they are and how long they took."""
        of = _Calls(*(np.concatenate(columns) for columns in zip(*self._met, strict=True)))
        names, links = dict[str, int](), list(self._links)
        told = [self._issued.get(key, KINDS.index(kind_of(key[1]))) for key in self._calls]
        kind = np.array([*told, _BETWEEN_TWO])[of.call]
        name = np.array([*(names.setdefault(text, len(names)) for _, text in self._calls), NONE])[of.call]
        texts = [*names, ""]
        distinct, of_transfer = np.unique(np.stack((name, kind, of.link)), axis=1, return_inverse=True)
        times = [
            byte_factor(texts[at], KINDS[of_kind], links[of_link].members)
            for at, of_kind, of_link in distinct.T.tolist()
        ]
        size = np.where(of.size == NONE, NONE, of.size * np.array(times)[of_transfer.reshape(-1)])
        own = np.where(np.isin(kind, _ROOTED), of.lasted_ns, of.own_ns)
        return _Entries(of.step, of.link, kind, np.where(size == NONE, name, NONE), size, own)

    def rows(self, steps: int) -> list[Transferred]:
        """Every link's transfers by kind and size class, compared with those of siblings; `steps`: that were chosen."""
        if not self._met:
            return []
        of = self._entries()
        links = list(self._links)
        hosts = [link.hosts(self._job) for link in links]
        members = np.array([link.members for link in links])
        alike = np.stack((of.kind, members[of.link], np.array(_numbered(hosts))[of.link]))
        timed = _Timed.of(of, dense(np.concatenate((alike, [of.size, of.name]))))
        size_class = np.where(of.size > 0, np.frexp(of.size.astype(float))[1] - 1, NONE)
        row = dense(np.stack((of.link, of.kind, size_class)))
        first = one_of_each(row)
        first = first[np.argsort(row[first])]
        order = np.argsort(row, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(row[order])) + 1)
        found = [
            timed.row(part, links[of.link[at]], hosts[of.link[at]], steps)
            for at, part in zip(first.tolist(), parts, strict=True)
        ]
        return _compared(found, timed.times(row), dense(np.concatenate((alike, [size_class])))[first])


@dataclass(frozen=True)
class _Timed:
    """Transfers, and what siblings took for the same."""

    entries: _Entries
    own_ns: Floats
    expected_ns: Floats
    """The median of the siblings' for the same transfer; NaN without siblings."""
    siblings: Ints

    @classmethod
    def of(cls, entries: _Entries, family: Ints) -> "_Timed":
        """`family` is a code of each transfer, equal for those of one kind and size among alike links."""
        turn = ordinal(np.stack((entries.step, entries.link, family)))
        own = np.maximum(entries.own_ns, 1).astype(float)
        return cls(entries, own, *others_median(dense(np.stack((entries.step, family, turn))), own))

    def times(self, row: Ints) -> Floats:
        """Return (steps × rows): the time of each row's transfers over that of siblings; NaN without any.

        Transfers with siblings enough for a test count alone, where a row has such.
        """
        compared = self.siblings + 1 >= FEWEST_SIBLINGS
        untested = np.bincount(row, weights=compared, minlength=int(row.max()) + 1) == 0
        compared |= untested[row] & (self.siblings + 1 >= FEWEST_COMPARED)
        step = np.unique(self.entries.step, return_inverse=True)[1].reshape(-1)
        shape = int(step.max()) + 1, int(row.max()) + 1
        cell = (step * shape[1] + row)[compared]
        own, expected = (
            np.bincount(cell, of[compared], shape[0] * shape[1]).reshape(shape)
            for of in (self.own_ns, self.expected_ns)
        )
        return np.where(expected > 0, own / np.maximum(expected, 1.0), np.nan)

    def row(self, part: Ints, link: Link, hosts: tuple[int, ...] | None, steps: int) -> Transferred:
        """Return what the transfers of one link and size class are."""
        kind = KINDS[int(self.entries.kind[part[0]])]
        size, own, expected = self.entries.size[part].astype(float), self.own_ns[part], self.expected_ns[part]
        sized, known = bool(size[0] > 0), ~np.isnan(expected)  # of one class all have sizes or none
        rate = float(np.median(size / own)) if sized else None  # bytes a nanosecond are gigabytes a second
        factor = bus_factor(kind, link.members)
        return Transferred(
            link=link,
            kind=kind,
            hosts=hosts,
            size_class=int(np.frexp(size[0])[1]) - 1 if sized else None,
            message_bytes=float(np.median(size)) if sized else None,
            calls=len(part) / steps,
            transfer_ns=float(np.median(own)),
            ns_per_step=float(own.sum()) / steps,
            algorithm_gb_per_s=rate,
            bus_gb_per_s=None if rate is None or factor is None else rate * factor,
            siblings=int(self.siblings[part].max()),
            ratio=float(np.median(expected[known] / own[known])) if known.any() else None,
        )


def _compared(rows: Sequence[Transferred], times: Floats, alike: Ints) -> list[Transferred]:
    """Return the rows with their chances; `alike` is a code per row, equal for those that are compared with one
    another.
    """
    told = list(rows)
    for code in np.unique(alike).tolist():
        siblings = np.flatnonzero((alike == code) & ~np.isnan(times).all(axis=0))
        found = compare(times[:, siblings])
        for at, p_value, steady in zip(siblings.tolist(), found.p_value.tolist(), found.steady.tolist(), strict=True):
            told[at] = replace(rows[at], p_value=p_value, steady=steady)
    return told


def _lasted_ns(sync: Synchronisation) -> Ints:
    """Each instance's time from its last member's arrival to the last one's end, on one clock.

    Members leave together, so a transfer is the shortest duration; of a broadcast and its like some leave earlier.
    """
    met, ops = sync.collectives, sync.collectives.ops
    offset = sync.clocks.offset_ns[ops.rank[met.row]]
    arrived = np.maximum.reduceat(ops.start_ns[met.row] - offset, met.starts)
    over = np.maximum.reduceat(ops.end_ns[met.row] - offset, met.starts)
    longest = np.maximum.reduceat(ops.duration_ns[met.row], met.starts)
    return np.asarray(np.clip((over - arrived).astype(np.int64), sync.own_ns, longest))


def _numbered(values: list[tuple[int, ...] | None]) -> list[int]:
    """Return a number for each, equal for equal ones."""
    known: dict[tuple[int, ...] | None, int] = {}
    return [known.setdefault(value, len(known)) for value in values]
