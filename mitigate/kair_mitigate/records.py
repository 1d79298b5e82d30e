"""Records what was proposed, decided and done about a job, in a small SQLite database next to its plan."""

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from kair_engine.results.mitigate import MitigationProposal
from kair_engine.trace.files import make_folder, modes_below
from kair_mitigate import orders
from kair_mitigate.job_state import read_state
from kair_mitigate.plans import Kind, Plan, Rule
from kair_mitigate.restarts import own

_SCHEMA = """
CREATE TABLE IF NOT EXISTS proposal(
    id INTEGER PRIMARY KEY, at REAL NOT NULL, action TEXT NOT NULL, sizes TEXT NOT NULL,
    reason TEXT NOT NULL, decision TEXT NOT NULL DEFAULT 'open', decided_at REAL, decided_by TEXT,
    batches TEXT NOT NULL DEFAULT 'null', deadline_us INTEGER, learning_rate TEXT, why TEXT);
CREATE TABLE IF NOT EXISTS ordered(
    version INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, from_step INTEGER NOT NULL,
    sizes TEXT NOT NULL, by TEXT NOT NULL, proposal INTEGER REFERENCES proposal(id),
    batches TEXT NOT NULL DEFAULT '[]', deadline_us INTEGER NOT NULL DEFAULT 0,
    learning_rate TEXT NOT NULL DEFAULT 'linear', claims INTEGER NOT NULL DEFAULT 0);
"""
FILE = "mitigation.db"


@dataclass(frozen=True, slots=True)
class Ordered:
    """A plan that was sent to the job."""

    plan: Plan
    at: float
    """Unix, s."""
    by: str
    """`auto`, or the user who ordered it."""
    proposal: int | None


def make_run_folder(folder: Path) -> None:
    """Create the folder of a job under mitigation, readable by its owner only, with a key. Raises OSError."""
    make_folder(folder.parent, modes_below(folder.parent.parent))
    make_folder(folder)
    orders.make_key(folder)


class Records:
    """The database of one job; several processes may use it. Methods raise OSError if it cannot be used."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the job's; it is created, with a key, if it is missing."""
        make_run_folder(folder)
        self.folder = folder
        os.close(own(str(folder / FILE), os.O_RDWR | os.O_CREAT))  # SQLite's companion files get its mode
        with self._opened() as database:
            database.executescript(_SCHEMA)

    def propose(
        self,
        action: str,
        sizes: tuple[int, ...],
        reason: Mapping[str, float],
        *,
        batches: tuple[int, ...] | None = None,
        deadline_us: int | None = None,
        learning_rate: Rule | None = None,
    ) -> int:
        """Add a proposal, which replaces open ones; return its number."""
        columns = "at, action, sizes, reason, batches, deadline_us, learning_rate"
        texts = json.dumps(sizes), json.dumps(dict(reason)), json.dumps(batches)
        values = time.time(), action, *texts, deadline_us, learning_rate
        with self._opened() as database:
            number = _number(database.execute(f"INSERT INTO proposal({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", values))
            _replace(database, number, f"proposal {number} is newer")
            return number

    def replace(self, why: str) -> None:
        """Withdraw open proposals; `why` is shown with them."""
        with self._opened() as database:
            _replace(database, 0, why)

    def carry_out(self, proposal: MitigationProposal, by: str) -> Plan:
        """Send a proposal to the job. Raises ValueError, RunKeyError, OSError as `order` does."""
        kind: Kind = "leave" if proposal.action == "kill_restart" else "sizes"
        shares = {name: getattr(proposal, name) or None for name in ("batches", "deadline_us", "learning_rate")}
        shares["claims"] = True if proposal.action == "claim" else None
        return self.order(proposal.sizes, by, kind=kind, proposal=proposal.number, **shares)  # type: ignore[arg-type]

    def decide(self, proposal: int, decision: Literal["approved", "denied"], by: str) -> MitigationProposal | None:
        """Return the proposal as decided; None if it does not exist or is not open."""
        with self._opened() as database:
            changed = database.execute(
                "UPDATE proposal SET decision = ?, decided_at = ?, decided_by = ? WHERE id = ? AND decision = 'open'",
                (decision, time.time(), by, proposal),
            )
            return next(iter(_proposals(database, "WHERE id = ?", proposal))) if changed.rowcount else None

    def order(
        self,
        sizes: tuple[int, ...],
        by: str,
        *,
        kind: Kind = "sizes",
        from_step: int = 0,
        proposal: int | None = None,
        batches: tuple[int, ...] | None = None,
        deadline_us: int | None = None,
        learning_rate: Rule | None = None,
        claims: bool | None = None,
    ) -> Plan:
        """Send a plan to the job, newer than all before; arguments of None keep their value.

        Raises ValueError for an invalid plan, RunKeyError, OSError.
        """
        key = orders.read_key(self.folder)
        with self._opened() as database:
            before = self._newest(database)
            newest = max(before.version, _heard(self.folder)) + 1
            batches = (before.batches if len(before.sizes) == len(sizes) else ()) if batches is None else batches
            deadline_us = before.deadline_us if deadline_us is None else deadline_us
            claims, rule = before.claims if claims is None else claims, learning_rate or before.learning_rate
            plan = Plan(newest, from_step, sizes, kind, batches, deadline_us, rule, claims)
            values = (plan.version, time.time(), kind, from_step, json.dumps(sizes), by, proposal)
            row = (*values, json.dumps(batches), deadline_us, plan.learning_rate, claims)
            database.execute("INSERT INTO ordered VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            orders.write_plan(self.folder, plan, key)
        return plan

    def proposals(self, most: int = 100) -> list[MitigationProposal]:
        """Return the proposals, newest first."""
        with self._opened() as database:
            return list(_proposals(database, "ORDER BY id DESC LIMIT ?", most))

    def history(self, most: int = 100) -> list[Ordered]:
        """Return the plans that were sent, newest first."""
        with self._opened() as database:
            return list(_ordered(database, most))

    @staticmethod
    def _newest(database: sqlite3.Connection) -> Plan:
        return next((one.plan for one in _ordered(database, 1)), Plan(0, 0, (1,)))

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
    """Return the newest version that the job has received."""
    known = read_state(folder)
    return 0 if known is None else known.state.newest_version


def _replace(database: sqlite3.Connection, newest: int, why: str) -> None:
    values = time.time(), why, newest
    database.execute(
        "UPDATE proposal SET decision = 'replaced', decided_at = ?, why = ? WHERE decision = 'open' AND id != ?", values
    )


def _number(inserted: sqlite3.Cursor) -> int:
    assert inserted.lastrowid is not None
    return inserted.lastrowid


def _proposals(database: sqlite3.Connection, rest: str, *values: Any) -> Iterator[MitigationProposal]:  # noqa: ANN401
    columns = "id, at, action, sizes, reason, decision, decided_by, batches, deadline_us, learning_rate, why"
    rows = database.execute(f"SELECT {columns} FROM proposal {rest}", values)
    for number, at, action, sizes, reason, decision, by, batches, *rest_of_plan in rows:
        items = json.loads(reason).items()
        figures = {name: value for name, value in items if isinstance(value, int | float) and isfinite(value)}
        shares = tuple(json.loads(batches) or ()), *rest_of_plan
        yield MitigationProposal(number, moment(at), action, tuple(json.loads(sizes)), figures, decision, by, *shares)


def moment(at: float) -> str:
    """Return a time (Unix, s) in the format of results."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _ordered(database: sqlite3.Connection, most: int) -> Iterator[Ordered]:
    """Yield the plans, newest first."""
    rows = database.execute("SELECT * FROM ordered ORDER BY version DESC LIMIT ?", (most,)).fetchall()
    for version, at, kind, from_step, sizes, by, proposal, batches, *rest_of_plan, claims in rows:
        shares = tuple(json.loads(batches)), *rest_of_plan, bool(claims)
        plan = Plan(version, from_step, tuple(json.loads(sizes)), kind, *shares)
        yield Ordered(plan, at, by, proposal)
