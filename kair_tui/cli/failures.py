"""Every way of ending without an answer: one line for the user, and the exit status that fits it."""

import traceback

import typer

from kair_engine.errors import KairError, UsageError
from kair_tui.cli.exit_codes import ExitCode
from kair_tui.cli.streams import abandon_stdout, say, say_lines

REPORT = "this is a defect of Kair: please report it with the output of the same command and --debug"


def report(error: BaseException, *, debug: bool = False, ascii_only: bool = False) -> int:
    """Says on stderr what went wrong and returns the exit status."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return ExitCode.INTERRUPTED
    if isinstance(error, BrokenPipeError):
        abandon_stdout()
        return ExitCode.PIPE_CLOSED
    if debug:
        say_lines("".join(traceback.format_exception(error)))
    message, hint, status = explained(error)
    say(f"kair: error: {message}", ascii_only=ascii_only)
    if hint:
        say(f"hint: {hint}", ascii_only=ascii_only)
    return status


def explained(error: BaseException) -> tuple[str, str | None, int]:
    """What to say of an error: message, hint where there is one, and exit status."""
    if isinstance(error, KairError):
        # The base class itself is raised where an output has no place: a full disk, a read-only store.
        status = ExitCode.INPUT if type(error) is KairError else error.exit_code
        return _one_line(str(error)), error.hint, status
    if _is_parsing_error(error):
        return _usage(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", None, ExitCode.INPUT
    if isinstance(error, OSError) and error.strerror:
        return error.strerror, None, ExitCode.INPUT
    if isinstance(error, MemoryError):
        return "out of memory", "choose fewer steps with --step", ExitCode.FAILED
    return f"{type(error).__name__}: {_one_line(str(error))}", REPORT, ExitCode.FAILED


def _is_parsing_error(error: BaseException) -> bool:
    """Typer's usage errors have no public base; `typer.BadParameter` is one, and its base is theirs."""
    return isinstance(error, typer.BadParameter.__mro__[1])


def _usage(error: BaseException) -> tuple[str, str | None, int]:
    text = _one_line(getattr(error, "format_message", lambda: str(error))())
    context = getattr(error, "ctx", None)
    hint = f"{context.command_path} --help" if context is not None else "kair --help"
    return text[:1].lower() + text[1:].rstrip("."), hint, UsageError.exit_code


def _one_line(text: str) -> str:
    return " ".join(text.split())
