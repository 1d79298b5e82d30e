"""A question that a screen asks: one command of the registry with its arguments, which can be written down."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from kair_engine.errors import UsageError
from kair_engine.model import Trace
from kair_tui.registry import Entry, find
from kair_tui.step_choice import step_text


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
            raise UsageError(f"no such command: {self.command}")
        return entry

    def text(self, job: str) -> str:
        """The `kair …` line that asks the same of `job` (as a shell reads it)."""
        words = ["kair", self.command, *([job] if self.entry.needs == "trace" else []), *self._options()]
        if self.steps is not None:
            words += ["--step", step_text(self.steps)]
        return shlex.join(words)

    def answer(self, trace: Trace) -> Any:  # noqa: ANN401
        """The command's result on `trace`, narrowed to the steps. Raises KairError."""
        chosen = trace if self.steps is None else trace.select(self.steps)
        arguments = {name: list(value) if isinstance(value, tuple) else value for name, value in self.arguments}
        return self.entry.load()(chosen, **arguments)

    def _options(self) -> Iterator[str]:
        from kair_tui.options import parameters

        flags = {parameter.name: _flag(parameter.annotation) for parameter in parameters(self.entry)}
        for name, value in self.arguments:
            for one in value if isinstance(value, tuple) else (value,):
                yield flags[name]
                if one is not True:
                    yield str(one)


def _flag(annotation: Any) -> str:  # noqa: ANN401
    """`--rank`: the long way of writing an option; an argument has none."""
    declared = get_args(annotation)[1]
    names = (declared.default, *(declared.param_decls or ()))
    return max((name for name in names if isinstance(name, str) and name.startswith("-")), key=len, default="")
