"""Which recordings the board asks, where they are, and what is true of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

CATALOGUE: Final = Path(__file__).with_name("recordings.json")

TruthKind = Literal["ranks", "job_wide", "since", "healthy", "untold"]


@dataclass(frozen=True)
class Truth:
    """What is true of a recording.

    `ranks`: these ranks (for a link, its ends) make the job slow. `job_wide`: it loses time, and no rank is to blame.
    `since`: the log's steps become slower at each of `since`; who is slow it cannot tell. `healthy`: nothing is wrong.
    `untold`: nobody said.
    """

    kind: TruthKind
    told_by: str
    """Who said so, and where."""
    ranks: tuple[int, ...] = ()
    causes: tuple[str, ...] = ()
    """Any of these of Kair's names of causes is right."""
    since: tuple[int, ...] = ()
    lost_us: float | None = None
    """What a step of the recording loses in the mean."""
    by_kair: bool = False
    """Kair's authors worked it out; no other party did."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Truth:
        """Return the truth as the catalogue writes it."""
        lists = {name: tuple(record[name]) for name in ("ranks", "causes", "since") if name in record}
        return cls(**{**record, **lists})


@dataclass(frozen=True)
class Source:
    """A public repository at one commit."""

    repository: str
    commit: str
    licence: str


@dataclass(frozen=True)
class Entry:
    """A recording: its files by path in the repository, each with the id that git gives its contents."""

    name: str
    group: str
    format: str
    truth: Truth | None
    """None where making the recording tells it."""
    source: Source | None = None
    """None where the recording is the project's own."""
    files: Mapping[str, str] = field(default_factory=dict)
    opened: str | None = None
    """Of several files, the one that a tool is given; None: their folder."""
    made: Mapping[str, Any] = field(default_factory=dict)
    """How it is made, where it is simulated; `folder` where the project has it."""


def read_catalogue(path: Path = CATALOGUE) -> list[Entry]:
    """Return the recordings in the catalogue's order. Raises KeyError or TypeError where an entry has no such form."""
    document = json.loads(path.read_text(encoding="utf-8"))
    sources = {name: Source(**record) for name, record in document["sources"].items()}
    return [_entry(record, sources) for record in document["recordings"]]


def _entry(record: Mapping[str, Any], sources: Mapping[str, Source]) -> Entry:
    known = dict(record)
    truth, source = known.pop("truth", None), known.pop("source", None)
    return Entry(**known, truth=Truth.of(truth) if truth else None, source=sources[source] if source else None)
