"""Names of a gift: which stay, since every job of a framework has them, and what takes the place of the others.

A name stays where all its words are in the table next to this module. Any other is replaced by a number with its sort
(`kernel_17`); where analyses go by a part of the name, its words of the table stay.
"""

import re
from collections import Counter
from collections.abc import Collection, Hashable
from typing import Final

import msgspec

from kair_engine.causes import PROFILER_OVERHEADS
from kair_engine.data_tables import data_table
from kair_engine.timeline.host_activity import kind_of_call
from kair_engine.timeline.inputs import AFTER_A_BATCH, OF_OTHERS
from kair_engine.timeline.kernel_families import family_of
from kair_engine.timeline.self_time import ISSUED_BY
from kair_engine.trace.format import INSIDE_UNKNOWN, QUEUE_FULL, STEP_SCOPE, STREAM_PREFIX, THREAD_PREFIX
from kair_engine.views.transfer_kinds import kind_of


class _Class(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    purpose: str
    words: str


_TABLE: Final = data_table(__file__, dict[str, _Class])
FRAMEWORK_WORDS: Final = frozenset(word for of in _TABLE.values() for word in of.words.split())
"""Words, in lower case, that names may keep."""
_EXACT: Final = frozenset((STEP_SCOPE, QUEUE_FULL, *PROFILER_OVERHEADS))
WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
"""A word of a name: its case may change where the next one begins."""
_LONGEST_NUMBER: Final = 2
"""Digits of a number that stays: versions, counts of arguments, numbers of process groups."""
_OPERATION: Final = "operation"
_OF_HOST: Final = frozenset(("host", "input", "gc", "sync"))
_OF_GLOO: Final = "gloo:"
_RECEIVES: Final = "recv"
_WITH_ALL: Final = re.compile(r"(?i)all[-_]?(reduce|gather|to[-_]?all)|reduce[-_]?scatter|barrier|send_?recv")
"""Collectives that all members leave together, and calls of several transfers."""
_PARAMETERS: Final = re.compile(r"[<(].*", re.DOTALL)
_GROUP: Final = re.compile(r"(?P<name>.*?)(?P<ranks>\s*\[[\d,\s]*\])?", re.DOTALL)


def is_known(word: str) -> bool:
    """Return whether a word may stay."""
    if word.isdecimal():
        return len(word) <= _LONGEST_NUMBER
    return word.isascii() and (len(word) == 1 or word.lower() in FRAMEWORK_WORDS)


class Pseudonyms:
    """What takes the place of each text, the same one wherever it stands."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], str] = {}
        self._taken = set[str]()
        self._numbers: Counter[str] = Counter()
        self.kept = set[str]()
        """Names of operations that stay."""

    @property
    def replaced(self) -> Counter[str]:
        """Sort → how many different texts were replaced."""
        return self._numbers

    @property
    def operations(self) -> dict[str, str]:
        """Return what each operation is called."""
        return {name: found for (sort, name), found in self._of.items() if sort == _OPERATION}

    def operation(self, name: str, kinds: Collection[str]) -> str:
        """Return what an operation is called that the recording has as of these kinds."""
        known = self._of.get((_OPERATION, name))
        return self._remember(_OPERATION, name, self._operation(name, kinds)) if known is None else known

    def other(self, sort: str, text: str) -> str:
        """Return the pseudonym of a host, a file, or what else is not the name of an operation or a group."""
        known = self._of.get((sort, text))
        return self._remember(sort, text, self._next(sort)) if known is None else known

    def group(self, text: str) -> str:
        """Return what a process group is called: the ranks that its text ends with stay, and a number in front."""
        known = self._of.get(("group", text))
        if known is not None:
            return known
        parts = _GROUP.fullmatch(text)
        name, ranks = (parts["name"], parts["ranks"] or "") if parts else (text, "")
        if not name or (name.isdecimal() and len(name) <= _LONGEST_NUMBER):
            return self._remember("group", text, text)
        return self._remember("group", text, f"{self.other('group_name', name)}{ranks}")

    def lanes(self, texts: Collection[str]) -> dict[str, str]:
        """Return the pseudonyms of all lanes, which sort as the lanes do."""
        found, width = dict[str, str](), len(str(len(texts)))
        for number, text in enumerate(sorted(texts)):
            prefix = next((one for one in (STREAM_PREFIX, THREAD_PREFIX) if text.startswith(one)), "lane ")
            found[text] = f"{prefix}{number:0{width}d}"
        self._numbers["lane"] += len(found)
        return found

    def _operation(self, name: str, kinds: Collection[str]) -> str:
        is_scope = set(kinds) == {"scope"}
        is_known_to_all = not is_scope and name.isascii() and all(map(is_known, WORD.findall(name)))
        if (name in _EXACT or is_known_to_all) and name not in self._taken:
            self.kept.add(name)
            return name
        told_by = _told_by_scope if is_scope else _told_by
        plain = self._next("scope" if is_scope else "operator" if _OF_HOST & set(kinds) else "kernel")
        mark = f"x{self._numbers.total()}"
        short = f"{_in_table(_PARAMETERS.sub('', name), mark)}_{mark}"
        return next((one for one in (plain, short) if told_by(one) == told_by(name)), _in_table(name, mark))

    def _next(self, sort: str) -> str:
        self._numbers[sort] += 1
        found = f"{sort}_{self._numbers[sort]}"
        return f"{found}_x" if found in self._taken else found

    def _remember(self, sort: str, text: str, pseudonym: str) -> str:
        self._of[sort, text] = pseudonym
        self._taken.add(pseudonym)
        return pseudonym


def _told_by_scope(name: str) -> Hashable:
    """Return what analyses see in the name of a scope."""
    return kind_of_call(name)


def _told_by(name: str) -> Hashable:
    """Return what analyses see in the name of any other operation."""
    return (
        kind_of_call(name),
        family_of(name),
        kind_of(name),
        bool(AFTER_A_BATCH.match(name)),
        tuple(name.startswith(one) for one in (*OF_OTHERS, ISSUED_BY, _OF_GLOO)),
        tuple(name.endswith(one) for one in (INSIDE_UNKNOWN, _RECEIVES)),
        bool(_WITH_ALL.search(name)),
    )


def _in_table(name: str, mark: str) -> str:
    """Return the name with `mark` in the place of each word that is not in the table."""
    found = WORD.sub(lambda word: word[0] if is_known(word[0]) else mark, name)
    return found.encode("ascii", "ignore").decode()
