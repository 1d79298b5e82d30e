"""A question that a screen asks: one command of the registry with its arguments, which can be written down."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kair_engine.errors import UsageError
from kair_engine.trace.model import Trace
from kair_tui.cli.job import OneEntryCache, step_text
from kair_tui.cli.registry import Entry, find

if TYPE_CHECKING:
    from kair_tui.render.answer import Answer


@dataclass(frozen=True)
class Question:
    """`command` is the registry's name, `arguments` its options by their parameter names; lists are tuples."""

    command: str
    arguments: tuple[tuple[str, Any], ...] = ()
    steps: tuple[int, ...] | None = None
    """None for all."""

    @classmethod
    def of(cls, command: str, steps: tuple[int, ...] | None = None, **arguments: Any) -> "Question":  # noqa: ANN401
        """A question whose arguments that are None or False are left at their defaults."""
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
        return cls(
            command,
            tuple((name, value) for name, value in given.items() if value is not None and value is not False),
            steps,
        )

    @property
    def entry(self) -> Entry:
        """The registry's entry."""
        entry = find(self.command)
        if entry is None:
            raise UsageError(f"no such command {self.command!r}")
        return entry

    def text(self, job: str, store: Path | None = None) -> str:
        """The `kair …` line that asks the same of `job` (as a shell reads it), with the store where one was named."""
        words = ["kair", self.command, *([job] if self.entry.needs == "trace" else []), *self._options()]
        if self.steps is not None:
            words += ["--step", step_text(self.steps)]
        if store is not None:
            words += ["--store", str(store)]
        return shlex.join(words)

    def answer(self, trace: Trace, cache: OneEntryCache) -> Any:  # noqa: ANN401
        """The command's result on `trace`, narrowed to the steps; `cache` serves the next one. Raises KairError."""
        from kair_tui.cli.job import blaming_files
        from kair_tui.cli.options import CACHE, takes_cache

        chosen = trace if self.steps is None else trace.select(self.steps)
        arguments: dict[str, Any] = dict(self.arguments)
        if takes_cache(self.entry):
            arguments[CACHE] = cache
        with blaming_files(chosen):
            return self.entry.load()(chosen, **arguments)

    def answer_of_store(self, store: Path | None) -> "Answer":
        """The answer of a command about the store, without a word on how far it is. Raises KairError."""
        from kair_tui.cli.invoke import ask_store
        from kair_tui.cli.output import unwatched

        return ask_store(self.entry, {**dict(self.arguments), "store": store}, unwatched)

    def _options(self) -> Iterator[str]:
        flags = _flags(self.entry) if self.arguments else {}
        for name, value in self.arguments:
            for one in value if isinstance(value, tuple) else (value,):
                if name in flags:
                    yield flags[name]
                if one is not True:
                    yield str(one)


@cache
def _flags(entry: Entry) -> Mapping[str, str]:
    """How a command's options are written, by the names of their parameters."""
    from kair_tui.cli.app import parameters
    from kair_tui.cli.options import written_as

    return {one.name or "": written_as(one) for one in parameters(entry) if one.param_type_name == "option"}
