"""Collectives of one step: which its communication rows are, and the call that issued each."""

from typing import Final

import numpy as np
import numpy.typing as npt

from kair_engine.readers.kineto.classify import Category, NameClass
from kair_engine.readers.kineto.collective_details import DetailColumns
from kair_engine.readers.kineto.tables import EventTables

Int64s = npt.NDArray[np.int64]
# What gloo times, and the call that issues it.
_TRANSFERS: Final = ((NameClass.HOST_SEND, "c10d::send"), (NameClass.HOST_RECV, "c10d::recv_"))


class StepCollectives:
    """Looks up the details of one step's rows, given as columns of equal length."""

    def __init__(
        self,
        tables: EventTables,
        details: DetailColumns,
        *,
        detail: Int64s,
        category: Int64s,
        name: Int64s,
        name_class: Int64s,
        thread: Int64s,
        start: Int64s,
        end: Int64s,
    ) -> None:
        self._tables, self._details = tables, details
        self._detail, self._thread, self._start, self._end = detail, thread, start, end
        self._name, self._name_class = name, name_class
        host_op = category == Category.CPU_OP
        calls = host_op & (name_class == NameClass.COLLECTIVE_CALL)
        records = host_op & (name_class == NameClass.COLLECTIVE_RECORD)
        self._calls = self._by_start(np.flatnonzero(calls))
        # Those that say which collective they are.
        told = np.flatnonzero(records & details.known[detail])
        self._records = told[np.lexsort((thread[told], start[told]))]

    def of_device_rows(self, rows: Int64s, launch: Int64s) -> Int64s:
        """The details of device collectives: their own, else those of the call that their launch lies in."""
        details = self._detail[rows].copy()
        launched = np.flatnonzero(~self._details.known[details] & (launch[rows] >= 0))
        launches = launch[rows[launched]]
        for thread in sorted(set(self._thread[launches].tolist())):
            records = self._records[self._thread[self._records] == thread]
            of_thread = np.flatnonzero(self._thread[launches] == thread)
            at = np.searchsorted(self._start[records], self._start[launches[of_thread]], "right") - 1
            of_thread, at = of_thread[at >= 0], at[at >= 0]
            within = self._end[records[at]] >= self._start[launches[of_thread]]
            details[launched[of_thread[within]]] = self._detail[records[at[within]]]
        return details

    def of_host_rows(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """The details of collectives timed on the host, and the other ends of sends and receives.

        The k-th row stands for the k-th recorded call.
        """
        details = self._detail[rows].copy()
        peers = self._peers(rows, details)
        if len(self._records) == len(rows):
            order = self._by_start(np.arange(len(rows)), rows)
            details[order] = self._detail[self._records]
            peers = self._details.peer[details]
        return details, peers

    def _peers(self, rows: Int64s, details: Int64s) -> Int64s:
        """Of sends and receives, from the k-th call of each kind for the k-th row that does not say it."""
        peers: Int64s = self._details.peer[details]
        for name_class, call in _TRANSFERS:
            number = self._tables.names.get(call, -1)
            calls = self._calls[self._name[self._calls] == number]
            places = np.flatnonzero(self._name_class[rows] == name_class)
            if len(calls) == len(places):
                places = self._by_start(places, rows[places])
                unsaid = (details[places] >= 0) & (peers[places] < 0)
                peers[places[unsaid]] = self._details.peer[self._detail[calls[unsaid]]]
        return peers

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

    def _by_start(self, values: Int64s, rows: Int64s | None = None) -> Int64s:
        return values[np.argsort(self._start[values if rows is None else rows], kind="stable")]
