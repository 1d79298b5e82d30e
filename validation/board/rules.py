"""Three rules that others use to find stragglers, from their descriptions, on what Kair read of a recording.

python -m validation.board.rules RECORDING

They are given Kair's tables (ranks, matched collectives, kinds of operations): a recording that Kair cannot read they
are not given either. JSON goes to standard output.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

Z_ABOVE: Final = 3.0
NAMES: Final = ("NVRx", "last arrival", "z-score")


def last_arrival(last_ranks: Iterable[int]) -> tuple[int, ...]:
    """Return the rank that came last to most of the collectives, given who came last to each.

    TraceLens' straggler summary, AMD-AGI/TraceLens, NcclAnalyser/nccl_analyser.py: "The rank with the lowest
    total_wait_time (and highest times_arrived_last) is the straggler". Of equals it is the lowest rank.
    """
    counts = Counter(last_ranks)
    return (min(counts, key=lambda rank: (-counts[rank], rank)),) if counts else ()


def z_outliers(time_us: Mapping[int, float]) -> tuple[int, ...]:
    """Return the ranks whose time is more than three standard deviations above the mean of all, highest first.

    z = (x − mean) / standard deviation over all ranks, outliers beyond 3: KAIR (SC '25), stage 2, on the time that each
    rank computes. Among n ranks no z exceeds (n − 1)/√n, so nobody of ten or fewer is ever accused.
    """
    spread = statistics.pstdev(time_us.values()) if time_us else 0.0
    if spread == 0:
        return ()
    mean = statistics.fmean(time_us.values())
    above = [rank for rank, time in time_us.items() if (time - mean) / spread > Z_ABOVE]
    return tuple(sorted(above, key=lambda rank: -time_us[rank]))


def nvrx_stragglers(speed: Mapping[int, float], below: float) -> tuple[int, ...]:
    """Return the ranks whose relative GPU performance score is below the threshold, slowest first.

    NVIDIA Resiliency Extension, straggler detection, usage guide: the score is the fastest rank's median kernel
    duration / the rank's own, weighted by the rank's time in each kernel; the default threshold is 0.75.
    """
    return tuple(sorted((rank for rank, score in speed.items() if score < below), key=lambda rank: speed[rank]))


def ask(recording: Path) -> dict[str, Any]:
    """Return whom each rule names. Raises KairError where the recording cannot be read."""
    import polars as pl
    from peer_rules import SLOW_BELOW, relative_speed

    import kair

    job = kair.open(str(recording))
    computed = job.operations.filter(pl.col("kind").is_in(["compute", "memory"]))
    rows = computed.select("rank", "name", duration="duration_us").collect()
    own = rows.group_by("rank").agg(pl.col("duration").sum())
    lasts = job.collectives.group_by("step", "collective").agg(pl.col("last_rank").first())
    speed = relative_speed(rows)
    return {
        "NVRx": nvrx_stragglers(dict(speed.iter_rows()), SLOW_BELOW),
        "last arrival": last_arrival(lasts["last_rank"].drop_nulls()),
        "z-score": z_outliers(dict(own.iter_rows())),
    }


def main() -> None:
    """Print whom the rules name."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "accuracy"))
    print(json.dumps(ask(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
