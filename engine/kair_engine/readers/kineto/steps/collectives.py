"""Collectives of one step: which its communication rows are, and the call that issued each."""

from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from kair_engine.readers.kineto.classify import Category, NameClass
from kair_engine.readers.kineto.collective_details import CollectiveDetails
from kair_engine.readers.kineto.tables import EventTables

Int64s = npt.NDArray[np.int64]
# What gloo times, and the call that issues it.
_TRANSFERS: Final = ((NameClass.HOST_SEND, "c10d::send"), (NameClass.HOST_RECV, "c10d::recv_"))


class StepCollectives:
    """Looks up the details of one step's rows, given as columns of equal length."""

    def __init__(
        self,
        tables: EventTables,
        *,
        detail: Int64s,
        category: Int64s,
        name: Int64s,
        name_class: Int64s,
        thread: Int64s,
        start: Int64s,
        end: Int64s,
    ) -> None:
        self._tables = tables
        self._detail, self._thread, self._start, self._end = detail, thread, start, end
        self._name, self._name_class = name, name_class
        host_op = category == Category.CPU_OP
        calls = host_op & (name_class == NameClass.COLLECTIVE_CALL)
        records = host_op & (name_class == NameClass.COLLECTIVE_RECORD)
        self._calls = self._by_start(np.flatnonzero(calls))
        self._records = self._informative(np.flatnonzero(records))

    def of_device_row(self, row: int, launch: int | None) -> CollectiveDetails | None:
        """The details of a device collective: its own, else those of the call that its launch lies in."""
        own = self._own(row)
        if own is not None and own.known:
            return own
        if launch is None:
            return own
        time, thread = self._start[launch], self._thread[launch]
        rows, starts = self._records.get(int(thread), (np.empty(0, np.int64), np.empty(0, np.int64)))
        at = int(np.searchsorted(starts, time, "right")) - 1
        if at >= 0 and self._end[rows[at]] >= time:
            return self._own(int(rows[at]))
        return own

    def of_host_rows(self, rows: Int64s) -> list[CollectiveDetails | None]:
        """The details of collectives timed on the host: the k-th row stands for the k-th recorded call."""
        details = self._with_peers(rows, [self._own(row) for row in rows.tolist()])
        recorded = self._by_start(
            np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in self._records.values())])
        )
        if len(recorded) != len(rows):
            return details
        order = self._by_start(np.arange(len(rows)), rows)
        for at, record in zip(order.tolist(), recorded.tolist(), strict=True):
            details[at] = self._own(record) or details[at]
        return details

    def _with_peers(self, rows: Int64s, details: list[CollectiveDetails | None]) -> list[CollectiveDetails | None]:
        """`details` with the other ends of sends and receives, from the k-th call of each kind for the k-th row."""
        for name_class, call in _TRANSFERS:
            number = self._tables.names.get(call, -1)
            calls = self._calls[self._name[self._calls] == number]
            places = np.flatnonzero(self._name_class[rows] == name_class)
            if len(calls) != len(places):
                continue
            for at, issued_by in zip(self._by_start(places, rows[places]).tolist(), calls.tolist(), strict=True):
                row, of_call = details[at], self._own(issued_by)
                if row is not None and row.peer is None and of_call is not None:
                    details[at] = replace(row, peer=of_call.peer)
        return details

    def calls_of_host_rows(self, rows: Int64s) -> Int64s:
        """The row of the call that issued each host collective: by order, else the latest before it; -1: none."""
        if not len(self._calls):
            return np.full(len(rows), -1)
        at = np.searchsorted(self._start[self._calls], self._start[rows], "right") - 1
        latest = np.where(at >= 0, self._calls[np.maximum(at, 0)], -1)
        if len(self._calls) == len(rows):
            latest[self._by_start(np.arange(len(rows)), rows)] = self._calls
        return latest

    def begins_of_host_rows(self, rows: Int64s, issued_by: Int64s, copies: Int64s, launch: Int64s) -> Int64s:
        """When each host collective had its input: not before the copies from the device in its call had ended.

        gloo times a device's collective from its call on, in which it asks for that copy; the device comes to it when
        it is done with what it computes before. `copies` are the copies from the device and `launch` tells per row the
        row that launched it. In the order of the rows' starts, which stays.
        """
        begins = self._start[rows].copy()
        copies = copies[launch[copies] >= 0]
        if not len(copies) or not len(rows):
            return begins
        at, thread = self._start[launch[copies]], self._thread[launch[copies]]
        for place, call in enumerate(issued_by.tolist()):
            if call >= 0:
                inside = (thread == self._thread[call]) & (at >= self._start[call]) & (at <= self._end[call])
                begins[place] = max(begins[place], self._end[copies[inside]].max(initial=0))
        begins = np.minimum(begins, self._end[rows])
        order = self._by_start(np.arange(len(rows)), rows)
        # Collectives are matched by their order: one that had its input sooner than the one before stays behind it.
        turn = np.arange(len(rows))
        begins[order] = np.minimum(np.maximum.accumulate(begins[order] - turn) + turn, self._end[rows[order]])
        return begins

    def _own(self, row: int) -> CollectiveDetails | None:
        number = int(self._detail[row])
        return self._tables.details[number] if number >= 0 else None

    def _informative(self, rows: Int64s) -> dict[int, tuple[Int64s, Int64s]]:
        """The records that say which collective they are, by thread, with their starts in order."""
        known = [row for row in rows.tolist() if (details := self._own(row)) is not None and details.known]
        kept = self._by_start(np.array(known, np.int64))
        return {
            thread: (on_thread, self._start[on_thread])
            for thread in sorted(set(self._thread[kept].tolist()))
            for on_thread in [kept[self._thread[kept] == thread]]
        }

    def _by_start(self, values: Int64s, rows: Int64s | None = None) -> Int64s:
        return values[np.argsort(self._start[values if rows is None else rows], kind="stable")]
