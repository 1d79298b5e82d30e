"""Opens files of evidence as bytes or numbered lines, decompressed and of bounded size; anything cut off is counted.

Logs and telemetry are untrusted: a line may be as long as the file, and a small archive may hold terabytes.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final

from kair_engine.errors import InputError
from kair_engine.readers.blocks import BlockReader, read_whole
from kair_engine.trace.evidence_table import EvidenceFile, EvidenceRows, described
from kair_engine.trace.measures import Clock, EvidenceSource, shown

LONGEST_LINE: Final = 64 << 10
"""Bytes of a line that are returned."""
MOST_BYTES: Final = 2 << 30
"""Decompressed bytes of a file that are read."""
CUT: Final = "it is cut off or damaged, or longer than is read"
"""The note of a source for which `Lines.is_cut` holds."""
NO_ZONE: Final = "its times name no time zone: they are taken to be UTC"
NO_HOST: Final = "it does not name its host: put it into a folder host=NAME"


class Lines:
    """Iterates once over the numbered lines of a file, up to `most_bytes` or to where it is damaged."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self._reader = BlockReader(path)
        self._most_bytes = most_bytes
        self.cut_lines = 0
        """Lines of more than LONGEST_LINE bytes, which were truncated to that length."""
        self.is_cut = False
        """Whether the file is longer than was read, or its compression is damaged."""
        self.only: bytes = b""
        """Unless it is empty, only lines that begin with one of these bytes are yielded, which is ten times faster."""
        self.passed_over = 0
        """The number of lines that were not yielded."""

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Yield (number from 1 on, line without its end). Raises InputError if the file cannot be read."""
        numbers = count(1)
        rest = b""
        for block in self._blocks():
            *whole, last = block.split(b"\n")
            for line in whole:
                number, first = next(numbers), (rest or line)[:1]
                if self.only and first not in self.only:
                    self.passed_over += 1
                else:
                    yield number, self._text(rest + line)
                rest = b""
            # Keep LONGEST_LINE bytes of a line that spans blocks, and one more that shows it is longer.
            rest += last[: LONGEST_LINE + 1 - len(rest)]
        if rest:
            yield next(numbers), self._text(rest)

    def _text(self, line: bytes) -> str:
        if len(line) > LONGEST_LINE:
            self.cut_lines += 1
            line = line[:LONGEST_LINE]
        return line.removesuffix(b"\r").decode("utf-8", "replace")

    def _blocks(self) -> Iterator[bytes]:
        left = self._most_bytes
        with closing(iter(self._reader)) as blocks:
            for block in blocks:
                if len(block) > left:
                    self.is_cut = True
                    yield block[:left]
                    return
                left -= len(block)
                yield block
        self.is_cut = self._reader.damaged


def json_of(path: Path, content: bytes, hint: str | None = None) -> Any:  # noqa: ANN401
    """Return the JSON value of a file's content. Raises InputError with `hint` if it is not JSON."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is cut off or damaged", hint) from error


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Return the whole content of a file, decompressed.

    Raises InputError if it is longer than `most_bytes`, or damaged.
    """
    content, is_damaged = read_whole(path, most_bytes, "cut it to the time of the recording")
    if is_damaged:
        raise InputError(f"{path} is compressed, and cut off or damaged")
    return content


class FileRows(EvidenceRows):
    """Collects the rows of one file, and the facts about it as their source."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__()
        self.path = path
        self.kind = kind
        self.hosts: set[str] = set()
        """Hosts that the file describes."""
        self.notes: list[str] = []
        self.doubts: list[str] = []
        self.passed_over = 0
        self._covered: list[int] = []

    def cover(self, *times_ns: int) -> None:
        """Extend the time that the source is known to cover, within which missing events count as evidence."""
        known = [*self._covered, *times_ns]
        self._covered = [min(known), max(known)] if known else []

    def note(self, text: str, *, holds: object = True, is_doubt: bool = False) -> None:
        """Add a sentence on the source if it `holds`; a doubt is repeated with the verdict."""
        if holds:
            self.notes.append(text)
            self.doubts += [text] if is_doubt else []

    def at(self, line: int | None = None) -> str:
        """Return where a row can be looked up: the file, or its line."""
        return self.path.name if line is None else f"{self.path.name}:{line}"

    def evidence(
        self, clock: Clock = "host", bound_s: float | None = None, observes: tuple[str, ...] = ()
    ) -> EvidenceFile:
        """Return all rows with their source, which covers at least their times."""
        source = EvidenceSource(
            self.path.name,
            self.kind,
            clock,
            bound_s,
            passed_over=self.passed_over,
            hosts=tuple(sorted({shown(host) for host in self.hosts})),
            notes=tuple(self.notes),
            doubts=tuple(self.doubts),
            observes=observes,
        )
        file = described(self, source)
        (only,) = file.sources
        self.cover(*(one for one in (only.first_ns, only.last_ns) if one is not None))
        if not self._covered:
            return file
        first, last = self._covered
        return EvidenceFile(file.table, (replace(only, first_ns=first, last_ns=last),))
