"""What the readers of Chrome's JSON share: a rank's rows with the steps that its ranges tell."""

from collections.abc import Sequence
from pathlib import Path

from kair_engine.errors import InputError
from kair_engine.readers.fragment_writer import EPOCH_NS, About, RankRecording, Rows, write_recording
from kair_engine.readers.identity import host_of
from kair_engine.readers.step_marks import Steps
from kair_engine.trace.model import FragmentInfo, KairWarning


def written(
    source: Path,
    out: Path,
    ranks: Sequence[RankRecording],
    *,
    form: str,
    rank_known: bool,
    has_device: bool,
    mark: str,
    device: str | None = None,
    world_size: int | None = None,
    warnings: tuple[KairWarning, ...] = (),
) -> FragmentInfo:
    """Writes the ranks' rows; `mark` says how steps would have been marked. Raises InputError where there are none."""
    if not any(len(one.rows) for one in ranks):
        raise InputError(f"{source.name} holds no operations")
    steps = ranks[0].steps
    about = About(
        format=form,
        rank_known=rank_known,
        has_device=has_device,
        absolute_time=int(steps.begin.min()) > EPOCH_NS,
        world_size=world_size,
        device=device,
        warnings=(*steps.warnings(source, mark), *warnings),
    )
    return write_recording(source, out, ranks, about)


def recording(rank: int, rows: Rows, steps: Steps, main_lane: str, source: Path) -> RankRecording:
    """One rank's part; the host is the one that folders name."""
    return RankRecording(rank, rows, steps, main_lane, host_of(source))
