"""What stragglers cost a stored job, kept with its recording so that it is worked out once."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kair_engine.recording.checksums import checked_body, with_checksum
from kair_engine.results.runs.fleet import StragglerCost
from kair_engine.trace.json_text import encode_json
from kair_engine.trace.permissions import modes_below, read_kept, write_whole

_FILE: Final = "cost.json"
_SCHEMA: Final = "kair.cost"
ANALYSES: Final = 3
"""Goes up where analyses come to other answers: what was kept before is worked out again."""


@dataclass(frozen=True)
class _Kept:
    analyses: int
    operations: int
    """Of the recording, as it was read then: some of it may have been damaged, or mended since."""
    cost: StragglerCost


def keep_cost(folder: Path, cost: StragglerCost, operations: int) -> None:
    """Keeps it in the folder of its recording, of which so many operations were read. Read-only stores do without."""
    with suppress(OSError):
        body = encode_json(_Kept(ANALYSES, operations, cost))
        write_whole(folder / _FILE, with_checksum(body, schema=_SCHEMA), modes_below(folder))


def kept_cost(folder: Path, operations: int) -> StragglerCost | None:
    """What was kept; None where there is nothing, it is damaged, or it is of other operations or analyses."""
    try:
        kept = msgspec.json.decode(checked_body(read_kept(folder / _FILE)), type=_Kept)
    except (OSError, ValueError, RecursionError):
        return None
    return kept.cost if (kept.analyses, kept.operations) == (ANALYSES, operations) else None
