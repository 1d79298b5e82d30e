"""Explains why a job's ranks do not report though they train on this host, for commands that would wait in silence.

These are the coordinator, `kair watch` and `kair mitigate control`. An agent leaves a note in its run folder about the
store it serves, and `kair capture run` leaves one before the agent exists. Jobs with one name in two stores have two
run folders, also one after the other if the first left steps to deliver.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kair_capture.files import make_secure_dir, object_in, write_atomically
from kair_capture.places import JobPlaces, address_of
from kair_capture.ring import is_running, process_namespace, start_ticks
from kair_capture.settings import default_run_dir
from kair_capture.wire import ROW_BYTES

AFTER_S: Final = 15.0
"""Ranks that train for longer should have reported: an agent looks every half second, and beats every second."""
_NOTE: Final = "agent.json"
_CLAIM: Final = "claim.json"


@dataclass(frozen=True)
class AgentNote:
    """An agent's note about itself."""

    pid: int
    start_ticks: int
    store: str
    key_file: str
    coordinator: str | None
    """KAIR_COORDINATOR; None if it reads the address from the store."""

    def serves(self, store: Path) -> bool:
        """Return whether it delivers into that store."""
        return os.path.realpath(self.store) == os.path.realpath(store)


def note_agent(run_dir: Path, places: JobPlaces, key_file: Path, coordinator: tuple[str, int] | None) -> None:
    """Write this process's note. Raises OSError."""
    named = None if coordinator is None else "{}:{}".format(*coordinator)
    note = AgentNote(os.getpid(), start_ticks(os.getpid()), str(places.store), str(key_file), named)
    write_atomically(run_dir / _NOTE, msgspec.json.encode(note))


def agent_in(run_dir: Path, note: str = _NOTE) -> AgentNote | None:
    """Return the note of the living agent in a run folder; None without one."""
    left = _note_in(run_dir, note)
    return left if left is not None and is_running(left.pid, left.start_ticks) else None


def _note_in(run_dir: Path, note: str) -> AgentNote | None:
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((run_dir / note).read_bytes(), type=AgentNote)
    return None


def run_dir_of(job: str, store: Path) -> Path:
    """Return the run folder for a job of that store, claimed as long as this process, and then its agent, lives.

    It is a separate one if another store's job has the usual one, or left undelivered steps in it.
    """
    usual = default_run_dir(job)
    with suppress(OSError):  # the creator of the folder reports the problem
        make_secure_dir(usual)
        with (usual / "claim.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_for(usual, store):
                claim = AgentNote(os.getpid(), start_ticks(os.getpid()), str(store), "", None)
                write_atomically(usual / _CLAIM, msgspec.json.encode(claim))
                return usual
        return usual.with_name(f"{usual.name}.{mark_of(store)}")
    return usual


def _is_for(run_dir: Path, store: Path) -> bool:
    if any(one is not None and not one.serves(store) for one in (agent_in(run_dir), agent_in(run_dir, _CLAIM))):
        return False
    last = _note_in(run_dir, _NOTE)
    if last is None or last.serves(store):
        return True
    return not has_undelivered(run_dir)


def has_undelivered(run_dir: Path) -> bool:
    """Return whether rows, scopes or windows wait in a run folder for a coordinator."""
    windows, journal = run_dir / "windows", run_dir / "rows.journal"
    waits = any(True for _ in run_dir.glob("scopes.journal*")) or (windows.is_dir() and any(windows.iterdir()))
    return waits or (journal.exists() and journal.stat().st_size > ROW_BYTES)


def mark_of(store: Path) -> str:
    """Return eight digits that identify a store, for names of folders."""
    return hashlib.sha256(os.path.realpath(store).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class _Here:
    """A run folder of a job on this host."""

    ranks: int
    """Ranks that live, and did so AFTER_S ago."""
    agent: AgentNote | None


def why_unheard(
    places: JobPlaces, address: tuple[str, int] | None = None, key_file: Path | None = None, *, refused: int = 0
) -> str | None:
    """Return why no rank reports, in a sentence; None if none is known to train.

    `address` and `key_file` are the coordinator's, None without one; `refused` counts datagrams with a wrong signature.
    """
    here = list(_folders(places))
    ranks = sum(one.ranks for one in here)
    if not ranks and not refused:
        return None
    though = f", though {ranks} {'train' if ranks > 1 else 'trains'} on this host" if ranks else ""
    agents = [one.agent for one in here if one.ranks and one.agent is not None]
    reason = _of_key(refused, key_file or places.key, agents) if refused else _of_agents(places, agents, address)
    return f"no rank of job {places.job} is heard{though}: {reason}"


def why_no_step(places: JobPlaces) -> str | None:
    """Return why no step of a job reaches the store, from its coordinator, or because it has none."""
    with suppress(OSError):
        status = object_in(places.status.read_bytes())
        if time.time() - places.status.stat().st_mtime < AFTER_S:
            why = status.get("unheard_because")
            return why if isinstance(why, str) else None
    none = f"job {places.job} has no coordinator in the store {places.store} (kair coordinator --job {places.job})"
    return why_unheard(places) or none


def _of_key(refused: int, key_file: Path, agents: list[AgentNote]) -> str:
    other = next((one.key_file for one in agents if one.key_file != str(key_file)), None)
    theirs = f"its agent uses {other}, " if other else ""
    return f"{refused:,} datagrams have another key's signature ({theirs}the coordinator {key_file}; KAIR_KEY_FILE)"


def _of_agents(places: JobPlaces, agents: list[AgentNote], address: tuple[str, int] | None) -> str:
    if not agents:
        return "no agent lives on this host (kair capture run starts one)"
    agent = next((one for one in agents if one.serves(places.store)), None)
    if agent is None:
        return f"their agent (process {agents[0].pid}) serves the store {agents[0].store}, not {places.store}"
    if address is None:
        return f"the job has no coordinator in the store {places.store} (kair coordinator --job {places.job})"
    if agent.coordinator is not None and address_of(agent.coordinator)[1] != address[1]:
        return f"their agent speaks with {agent.coordinator} (KAIR_COORDINATOR), the coordinator has port {address[1]}"
    return f"their agent (process {agent.pid}) does not reach the coordinator at {address[0]}:{address[1]}"


def _folders(places: JobPlaces) -> Iterator[_Here]:
    usual = default_run_dir(places.job)
    with suppress(OSError):
        for folder in (usual, *sorted(usual.parent.glob(f"{usual.name}.????????"))):
            stated = [object_in(path.read_bytes()) for path in sorted(folder.glob("rank-*.json"))]
            yield _Here(sum(map(_trains, stated)), agent_in(folder))


def _trains(stated: Mapping[str, object]) -> bool:
    pid, began, since = (stated.get(name) for name in ("pid", "start_ticks", "started_ns"))
    if not (isinstance(pid, int) and isinstance(began, int) and isinstance(since, int)):
        return False
    is_here = stated.get("pid_namespace") == process_namespace() and is_running(pid, began)
    return is_here and time.time_ns() - since > AFTER_S * 1e9
