"""A parsed file of a recording."""

from pathlib import Path

from kair_engine.frozen import dataclass
from kair_engine.trace.model import FragmentInfo


@dataclass(frozen=True)
class Fragment:
    """A fragment and what it holds."""

    path: Path
    info: FragmentInfo
