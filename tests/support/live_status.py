"""A running job's status, as its coordinator writes it."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from kair_engine.results.watch import Alert, Sampling, WatchedHost, WatchedRank, WatchedWindow, WatchResult

HOST = WatchedHost("node-1", 4, False, 0.3, 12.5, 30.0, 0, 1, 0, 0, 0)
SLOW = Alert("2026-01-01T10:00:00.000+00:00", "slow_rank", 124, (2,), ("node-1",), 0.2, 20.0)
RANKS = tuple(
    WatchedRank(rank, "node-1", 150, 6e4, 5e4, 0.2 if rank == 2 else 0.0, 20.0 * (rank == 2), rank == 2, peers=3)
    for rank in range(4)
)
WINDOW = WatchedWindow(1, 140, 147, (0, 1, 2, 3), "slow ranks", "committed")
STATUS = WatchResult(
    "job123", "", "training", 150, 6e4, 5e4, 4, RANKS, (HOST,), (SLOW,), Sampling(0.01, 0.002, 1, 0, 0, (WINDOW,)), {}
)


def write_status(store: Path, status: WatchResult) -> None:
    """Into the job's folder, as of now."""
    folder = store / status.job / "capture"
    folder.mkdir(parents=True, exist_ok=True)
    written = replace(status, updated_at=status.updated_at or datetime.now(UTC).isoformat())
    (folder / "status.json").write_bytes(msgspec.json.encode(written))
