"""Handles the run folders of jobs on this host: ranks' statements in them, and the removal of dead ones.

Folders of dead jobs occupy memory, and nothing else would remove them.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from kair_capture.agent.ring_reader import NotARingError, RingReader, Trainer, trainers_in
from kair_capture.delays import TakesDelays
from kair_capture.files import BusyError, locked, object_in
from kair_capture.job import framework
from kair_capture.ring import is_running, process_namespace
from kair_capture.unheard import has_undelivered
from kair_capture.wire import MOST_CALLS, MOST_PARTNERS, BadMessageError, Communication

DEAD_AFTER_S: Final = 3600.0
"""A job that just begins, or restarts its agent, has changed its folder more recently."""
UNDELIVERED_AFTER_S: Final = 24 * 3600.0
"""The same if steps or windows wait for a coordinator: the job's next agent would deliver them."""
_GOING: Final = ".dead-"


def remove_dead_folders(run_dir: Path, now_s: float | None = None) -> list[str]:
    """Remove the folders next to `run_dir` without living processes; return their names. `now_s` is Unix.

    Only folders owned by this user are removed; failures are ignored.
    """
    now, removed = time.time() if now_s is None else now_s, []
    for folder in _beside(run_dir):
        with suppress(OSError):
            if folder.name.startswith(_GOING):
                shutil.rmtree(folder)
            elif _is_dead(folder, now):
                # Rename it first, so that a job of that name that begins now creates a new folder.
                going = folder.with_name(f"{_GOING}{folder.name}-{time.time_ns()}")
                folder.rename(going)
                shutil.rmtree(going)
                removed.append(folder.name)
    return removed


def _beside(run_dir: Path) -> Iterator[Path]:
    with suppress(OSError):
        # A symbolic link in place of the parent would direct the removal elsewhere.
        for folder in [] if run_dir.parent.is_symlink() else sorted(run_dir.parent.iterdir()):
            is_folder = folder != run_dir and folder.is_dir() and not folder.is_symlink()
            if is_folder and folder.stat().st_uid == os.geteuid():
                yield folder


def _is_dead(folder: Path, now: float) -> bool:
    """Return whether it is a run folder that has long been without an agent and ranks."""
    names = {path.name for path in folder.iterdir()}
    if not any(name == "agent.lock" or name.startswith("rank-") for name in names):
        return False
    changed = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    patience = UNDELIVERED_AFTER_S if has_undelivered(folder) else DEAD_AFTER_S
    return now - changed > patience and not _has_agent(folder) and not _has_ranks(folder, names)


def _has_agent(folder: Path) -> bool:
    if not (folder / "agent.lock").exists():
        return False
    try:
        os.close(locked(folder / "agent.lock"))
    except BusyError:
        return True
    return False


def _has_ranks(folder: Path, names: set[str]) -> bool:
    """Return whether a rank lives; one in another container may, as far as is visible here."""
    for _, stated in identities(folder):
        if stated.get("pid_namespace") != process_namespace():
            return True
        pid, began = stated.get("pid"), stated.get("start_ticks")
        if isinstance(pid, int) and isinstance(began, int) and is_running(pid, began):
            return True
    return any(_is_producing(folder / ring) for rings in trainers_in(names).values() for ring in rings)


def _is_producing(ring: Path) -> bool:
    try:
        reader = RingReader(ring)
    except (OSError, NotARingError):
        return False
    try:
        return reader.is_producing
    finally:
        reader.close()


def world_size_in(run_dir: Path) -> int | None:
    """Return the job's size as stated by the rank that began last: others may be of an earlier attempt."""
    stated = ((one.get("started_ns"), one.get("world_size")) for _, one in identities(run_dir))
    sizes = [
        (began if isinstance(began, int) else 0, size)
        for began, size in stated
        if isinstance(size, int) and 0 < size < 1 << 20
    ]
    return max(sizes)[1] if sizes else None


def communication_in(run_dir: Path, trainer: Trainer) -> Communication | None:
    """Return how a rank communicates; None if it, or this process of it, does not state it."""
    stated = _read(run_dir / f"rank-{trainer.rank}.json")
    world_size = stated.get("world_size")
    if stated.get("pid") != trainer.pid or not isinstance(world_size, int):
        return None
    try:
        seen = msgspec.convert(stated.get("communication"), framework.Communication)
        groups = tuple((size, min(calls, MOST_CALLS)) for size, calls in seen.groups[:MOST_PARTNERS])
        partners = seen.sends[:MOST_PARTNERS], seen.receives[:MOST_PARTNERS]
        said = Communication(trainer.rank, world_size, *partners, groups, _takes_delays(stated))
        return Communication.read(said.packed())
    except (msgspec.MsgspecError, OverflowError, BadMessageError):
        return None


def _takes_delays(stated: dict[str, Any]) -> TakesDelays:
    allowed = stated.get("delays_allowed")
    if stated.get("takes_delays") is not True or allowed is False:
        return TakesDelays.NO
    return TakesDelays.YES if allowed is True else TakesDelays.WHERE_ALLOWED


def identities(run_dir: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield every rank's file and content; unreadable ones are left out."""
    for path in sorted(run_dir.glob("rank-*.json")):
        if found := _read(path):
            yield path, found


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError):
        return object_in(path.read_bytes())
    return {}
