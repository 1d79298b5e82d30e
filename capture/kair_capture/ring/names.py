"""The texts that records name by number: one append-only file per process, read while it grows."""

import os
import threading
from pathlib import Path
from typing import Final

OTHER: Final = 0
"""The number of no name, and of all names past the most."""
MOST_NAMES: Final = 4096
MOST_CHARACTERS: Final = 200


class NameWriter:
    """Gives every text a number, from 1 on, and writes it down before the number is first used. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Goes on with a file that is there: a process can be captured twice. Raises OSError where it cannot be."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._handle = os.open(path, flags, 0o600)
        self._numbers: dict[str, int] = NameReader(path).numbers()
        # A signal's handler, or a finalizer, can run in the middle of `_added` and come here itself.
        self._lock, self._is_adding = threading.RLock(), False

    def number(self, text: str) -> int:
        """The text's number; OTHER for a new text once there are MOST_NAMES. Raises OSError on a full disk."""
        # Without the lock: a dictionary's look-up is whole, and a number never changes.
        known = self._numbers.get(text)
        return known if known is not None else self._added(text)

    def close(self) -> None:
        """Closes the file, which stays."""
        os.close(self._handle)

    def _added(self, text: str) -> int:
        with self._lock:
            if text in self._numbers:
                return self._numbers[text]
            if len(self._numbers) >= MOST_NAMES or self._is_adding:
                return OTHER
            self._is_adding = True
            try:
                number = len(self._numbers) + 1
                # One write: a reader sees the line's begin at most, and waits for its end.
                os.write(self._handle, f"{number}\t{_one_line(text)}\n".encode())
                self._numbers[text] = number
            finally:
                self._is_adding = False
            return number


class NameReader:
    """The texts of a names file, as far as it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._texts: dict[int, str] = {OTHER: ""}

    def text(self, number: int) -> str:
        """The text of a number, `?` for one that is not there."""
        if number not in self._texts:
            self._follow()
        return self._texts.get(number, "?")

    def numbers(self) -> dict[str, int]:
        """text → number, of all that are there."""
        self._follow()
        return {text: number for number, text in self._texts.items() if number != OTHER}

    def _follow(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole, end, _ = file.read(MOST_NAMES * (MOST_CHARACTERS * 4 + 16)).rpartition(b"\n")
        except OSError:
            return
        self._read += len(whole) + len(end)
        for line in whole.split(b"\n"):
            number, _, text = line.decode(errors="replace").partition("\t")
            if number.isdecimal() and int(number) <= MOST_NAMES:
                self._texts[int(number)] = text


def _one_line(text: str) -> str:
    """Printable, cut to the most characters; what cannot be encoded is replaced."""
    kept = text[:MOST_CHARACTERS].encode(errors="replace").decode()
    return "".join(character if character.isprintable() else "�" for character in kept)
