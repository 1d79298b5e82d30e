"""What was proposed, decided and done about a job: a small SQLite database beside its plan, for people and audits."""

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kair_mitigate import orders
from kair_mitigate.job_state import read_state
from kair_mitigate.plans import Kind, Plan

Decision = Literal["open", "approved", "denied", "replaced"]
_SCHEMA = """
CREATE TABLE IF NOT EXISTS proposal(
    id INTEGER PRIMARY KEY, at REAL NOT NULL, action TEXT NOT NULL, sizes TEXT NOT NULL,
    reason TEXT NOT NULL, decision TEXT NOT NULL DEFAULT 'open', decided_at REAL, decided_by TEXT);
CREATE TABLE IF NOT EXISTS ordered(
    version INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, from_step INTEGER NOT NULL,
    sizes TEXT NOT NULL, by TEXT NOT NULL, proposal INTEGER REFERENCES proposal(id));
"""
FILE = "mitigation.db"


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the controller would do."""

    id: int
    at: float
    """Unix, s."""
    action: str
    sizes: tuple[int, ...]
    reason: Mapping[str, float]
    """Figures: what a step takes, what it would take by the price's ends, and whatever the policy tells."""
    decision: Decision
    decided_at: float | None
    decided_by: str | None


@dataclass(frozen=True, slots=True)
class Ordered:
    """A plan that was sent to the job."""

    plan: Plan
    at: float
    """Unix, s."""
    by: str
    """`auto`, or the user who said so."""
    proposal: int | None


class Records:
    """The database of one job; several processes may have it open. Methods raise OSError where it cannot be used."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the job's; it is made, with a key, if it is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        orders.make_key(folder)
        self.folder = folder
        with self._opened() as database:
            database.executescript(_SCHEMA)

    def propose(self, action: str, sizes: tuple[int, ...], reason: Mapping[str, float]) -> int:
        """A new proposal's number; those that are open are replaced by it."""
        with self._opened() as database:
            database.execute("UPDATE proposal SET decision = 'replaced' WHERE decision = 'open'")
            row = time.time(), action, json.dumps(sizes), json.dumps(dict(reason))
            return _number(database.execute("INSERT INTO proposal(at, action, sizes, reason) VALUES (?, ?, ?, ?)", row))

    def decide(self, proposal: int, decision: Literal["approved", "denied"], by: str) -> Proposal | None:
        """The proposal as decided; None where there is no such open one."""
        with self._opened() as database:
            changed = database.execute(
                "UPDATE proposal SET decision = ?, decided_at = ?, decided_by = ? WHERE id = ? AND decision = 'open'",
                (decision, time.time(), by, proposal),
            )
            return next(iter(_proposals(database, "WHERE id = ?", proposal))) if changed.rowcount else None

    def order(
        self, sizes: tuple[int, ...], by: str, *, kind: Kind = "sizes", from_step: int = 0, proposal: int | None = None
    ) -> Plan:
        """Sends a plan to the job, newer than all before. Raises RunKeyError, OSError."""
        key = orders.read_key(self.folder)
        with self._opened() as database:
            newest = max(self._newest(database), _heard(self.folder))
            plan = Plan(newest + 1, from_step, sizes, kind)
            row = (plan.version, time.time(), kind, from_step, json.dumps(sizes), by, proposal)
            database.execute("INSERT INTO ordered VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            orders.write_plan(self.folder, plan, key)
        return plan

    def proposals(self, most: int = 100) -> list[Proposal]:
        """The newest first."""
        with self._opened() as database:
            return list(_proposals(database, "ORDER BY id DESC LIMIT ?", most))

    def history(self, most: int = 100) -> list[Ordered]:
        """The plans that were sent, the newest first."""
        with self._opened() as database:
            rows = database.execute("SELECT * FROM ordered ORDER BY version DESC LIMIT ?", (most,)).fetchall()
        return [
            Ordered(Plan(version, from_step, tuple(json.loads(sizes)), kind), at, by, proposal)
            for version, at, kind, from_step, sizes, by, proposal in rows
        ]

    @staticmethod
    def _newest(database: sqlite3.Connection) -> int:
        newest: int = database.execute("SELECT coalesce(max(version), 0) FROM ordered").fetchone()[0]
        return newest

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            database = sqlite3.connect(self.folder / FILE, timeout=10)
            try:
                database.execute("PRAGMA journal_mode = WAL")
                with database:
                    yield database
            finally:
                database.close()
        except sqlite3.Error as error:
            raise OSError(f"cannot use {self.folder / FILE}: {error}") from error


def _heard(folder: Path) -> int:
    """The newest version that the job has heard of."""
    known = read_state(folder)
    return 0 if known is None else max(plan.version for plan in (known.state.plan, *known.state.coming))


def _number(inserted: sqlite3.Cursor) -> int:
    assert inserted.lastrowid is not None
    return inserted.lastrowid


def _proposals(database: sqlite3.Connection, rest: str, *values: Any) -> Iterator[Proposal]:  # noqa: ANN401 (SQL's)
    columns = "id, at, action, sizes, reason, decision, decided_at, decided_by"
    for number, at, action, sizes, reason, *decided in database.execute(
        f"SELECT {columns} FROM proposal {rest}", values
    ):
        yield Proposal(number, at, action, tuple(json.loads(sizes)), json.loads(reason), *decided)
