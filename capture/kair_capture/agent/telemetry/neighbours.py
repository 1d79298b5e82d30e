"""Finds other processes on the cores of this host's ranks, including those that ranks started, with their CPU time.

All processes are scanned if a rank recently lacked a core, and otherwise twice a minute. Within a container others are
not visible.
"""

import os
from typing import Final

from kair_capture.agent.telemetry.kept_files import TICKS
from kair_capture.agent.telemetry.pacing import OFTEN, RARE, Task
from kair_capture.agent.telemetry.process_table import ProcessStat, ProcessTable
from kair_capture.agent.telemetry.processes import RankProcesses, cores_in
from kair_capture.agent.telemetry.rows import HEARTBEAT_S, Rows
from kair_engine.trace.measures import process

_LACKED: Final = 0.005
"""Share of the time since the last look that a rank lacked a core, from which all processes are scanned."""
NONE: Final = "none"
"""Value of `neighbour` while no other process computes."""


class Neighbours:
    """Neighbours of all ranks here. A process's time counts for each rank whose cores it may use."""

    def __init__(self, rows: Rows, ranks: RankProcesses, table: ProcessTable, own: int | None = None) -> None:
        """`own` is the agent's process, which does not count."""
        self._rows, self._ranks, self._table = rows, ranks, table
        self._own = os.getpid() if own is None else own
        self._before: dict[int, ProcessStat] | None = None
        self._scanned_ns = 0
        self._delays: dict[int, tuple[int, float]] = {}
        """rank → when it was last checked, and its time without a core then."""
        self._totals: dict[int, float] = {}
        """Process of a rank → CPU time of others on its cores (s) since the first scan."""

    def tasks(self) -> list[Task]:
        """Return the tasks that read them."""
        return [Task("other processes", OFTEN, self._look)]

    def _look(self, time_ns: int) -> None:
        lacked = [self._lacked_a_core(rank, time_ns) for rank in self._ranks.of]
        if any(lacked) or time_ns - self._scanned_ns > HEARTBEAT_S * 1e9 or self._before is None:
            self._scan(time_ns)
        for pid in self._totals.keys() - {one.pid for one in self._ranks.of.values()}:
            del self._totals[pid]

    def _lacked_a_core(self, rank: int, time_ns: int) -> bool:
        now_s = self._ranks.of[rank].run_delay_s
        before_ns, before_s = self._delays.get(rank, (time_ns, now_s))
        self._delays[rank] = (time_ns, now_s)
        return now_s - before_s > _LACKED * (time_ns - before_ns) / 1e9

    def _scan(self, time_ns: int) -> None:
        now = {pid: stat for pid in self._table.numbers() if (stat := self._table.stat(pid)) is not None}
        self._table.set_parents({pid: stat.parent for pid, stat in now.items()})
        before, self._before, self._scanned_ns = self._before, now, time_ns
        if before is None:
            return
        job = self._job()
        grown: dict[int, float] = {}
        for pid, stat in now.items():
            known = before.get(pid)
            ticks = stat.ticks - (known.ticks if known is not None and known.began == stat.began else 0)
            if ticks > 0 and pid not in job:
                grown[pid] = ticks / TICKS
        cores = {pid: cores_in(self._table.text(pid, "status")) for pid in grown}
        for one in self._ranks.of.values():
            if not one.cores:
                continue  # not known yet
            beside = {pid: seconds for pid, seconds in grown.items() if cores[pid] & one.cores}
            self._tell(one.pid, one.rank, beside, now, time_ns)

    def _tell(self, pid: int, rank: int, beside: dict[int, float], now: dict[int, ProcessStat], time_ns: int) -> None:
        self._totals[pid] = self._totals.get(pid, 0.0) + sum(beside.values())
        # At the longest interval, which is the usual one; rows may be closer together.
        self._rows.note(process(pid), "neighbour_time", RARE, time_ns, self._totals[pid], rank)
        most = max(beside, key=lambda one: beside[one], default=None)
        its_own = ", which the rank began" * (most in self._table.descendants([pid]))
        greatest = NONE if most is None else f"{now[most].name} (pid {most}){its_own}"
        self._rows.note(process(pid), "neighbour", RARE, time_ns, greatest, rank)

    def _job(self) -> set[int]:
        """Return the ranks, their launchers, and the agent with its descendants."""
        ranks = {one.pid for one in self._ranks.of.values()}
        launchers = {parent for pid in ranks if (parent := self._table.parent(pid)) is not None and parent > 1}
        return ranks | launchers | {self._own} | self._table.descendants([self._own])
