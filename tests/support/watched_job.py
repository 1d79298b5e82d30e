"""A watched job of the store of which nothing was sampled: the steps of a real one, rank 1 slower from step 100 on."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from support.places import ROOT

from kair_capture.coordinator.step_log import read_all, write_part
from kair_capture.places import JobPlaces
from kair_engine.results.watch import Alert, Hang, Sampling, StandingRank, WatchedRank, WatchResult
from kair_engine.trace.files import make_folder

RECORDED = ROOT / "tests" / "recordings" / "scopes"
STANDING = tuple(
    StandingRank(
        rank, "node-1", "lives", 240, *(("input", "job/train.py:16 <module>") if rank == 1 else ("collective", ""))
    )
    for rank in range(4)
)
HANG = Hang(
    1,
    "2026-01-01T10:00:00.000+00:00",
    "stalled",
    239,
    (1,),
    "rank 1 on node-1 is stuck in step 240, in input, at job/train.py:16 <module>; 3 ranks wait in all_reduce",
    STANDING,
)
"""Rank 1 does not come out of its input."""


def watched_job(store: Path, name: str = "job", *, until: int = 239, hang: Hang | None = None) -> JobPlaces:
    """Leave the job as its coordinator does, with its steps up to `until`, or none for a negative one."""
    places = JobPlaces(store, name)
    places.capture.mkdir(parents=True, exist_ok=True)
    if until >= 0:
        make_folder(places.steps)
        rows = read_all(RECORDED / "steps")
        write_part(places.steps / "part-00000001.parquet", rows[rows["step"] <= until])
        shutil.copytree(RECORDED / "scopes", places.scopes, dirs_exist_ok=True)
    now = datetime.now(UTC).isoformat()
    ranks = tuple(WatchedRank(rank, "node-1", until, None, None, None, 0.0, slow=rank == 1) for rank in range(4))
    noticed = Alert(now, "slow_rank", 124, (1,), ("node-1",), 0.5, 9.0)
    of_job = (noticed,) if until >= 124 else ()
    status = WatchResult(
        name, now, "over", until, None, None, 4, ranks, (), of_job, Sampling(0.01, 0.0, 0, 0, 0, ()), {}, hang=hang
    )
    places.status.write_bytes(msgspec.json.encode(replace(status, state="stalled" if hang else "over")))
    return places
