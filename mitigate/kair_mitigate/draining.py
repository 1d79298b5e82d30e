"""Takes a host out of its scheduler's hands: the commands of the site, of Slurm and Kubernetes; printed, or run if one
says so.

A host's name comes from a recording, which may be anybody's: it becomes a word of a command, and never a shell's.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_EVERY_HOST: Final = "all"
"""What Slurm takes for all nodes at once."""
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
_KNOWN: Final = ("host", "reason", "device", "job")
_NO_TEXT: Final = re.compile(r"[^A-Za-z0-9 ._,:/+%=-]")
"""What may mean something to a shell or to a scheduler: a site's command may hand on what it is given (`ssh`)."""
LONGEST_S: Final = 60
_MOST_SAID: Final = 300


@dataclass(frozen=True)
class Ran:
    """What came of a command; `status` is None where it could not be started, or did not end in time."""

    status: int | None
    said: str

    @property
    def failed(self) -> bool:
        """Whether it did not do what it should."""
        return self.status != 0


def drain_template(text: str) -> list[str]:
    """Return the words of a site's command, in which `{host}`, `{reason}`, `{device}` and `{job}` are filled in later.

    Raises ValueError where it is none, names no host, or holds another placeholder.
    """
    words = shlex.split(text)
    if not words:
        raise ValueError("it is empty")
    found = {name for word in words for name in _PLACEHOLDER.findall(word)}
    if unknown := sorted(found - set(_KNOWN)):
        raise ValueError(f"{{{unknown[0]}}} is not known; there are: {', '.join(f'{{{name}}}' for name in _KNOWN)}")
    if "host" not in found:
        raise ValueError("it has no {host}")
    if _PLACEHOLDER.search(words[0]):
        raise ValueError("its first word, the program, has a placeholder")
    return words


def drain_commands(
    host: str,
    reason: str,
    schedulers: Collection[str],
    *,
    device: str = "",
    job: str = "",
    template: Sequence[str] | None = None,
) -> list[list[str]]:
    """Return the words of the site's command, else of each of `schedulers` (`slurm`, `kubernetes`).

    Words of the template stay one word each, whatever is filled in. Raises ValueError for what names no host.
    """
    if not _HOST.fullmatch(host) or host.lower() == _EVERY_HOST:
        raise ValueError(f"{host!r} is no host's name")
    if template is not None:
        values = {"host": host, "reason": _plain(reason), "device": _plain(device), "job": _plain(job)}
        return [[_filled(word, values) for word in template]]
    known = {
        "slurm": ["scontrol", "update", f"NodeName={host}", "State=DRAIN", f"Reason={_plain(reason)}"],
        "kubernetes": ["kubectl", "cordon", host],
    }
    return [command for scheduler, command in known.items() if scheduler in schedulers]


_SEEN_BY: Final[Mapping[str, tuple[str, str]]] = {
    "slurm": ("SLURM_JOB_ID", "scontrol"),
    "kubernetes": ("KUBERNETES_SERVICE_HOST", "kubectl"),
}
"""The variable that a scheduler gives to what it runs, and the program that asks it."""


def schedulers_here() -> list[str]:
    """Return the schedulers that this process can ask, all where none is seen. What ran a recorded job is another
    question: its recording may be from anywhere.
    """
    seen = [
        scheduler
        for scheduler, (variable, program) in _SEEN_BY.items()
        if os.environ.get(variable) or shutil.which(program) is not None
    ]
    return seen or list(_SEEN_BY)


def _plain(text: str) -> str:
    """`text` without signs that a shell or an option could be made of."""
    return _NO_TEXT.sub("_", text).lstrip("-= ")


def _filled(word: str, values: Mapping[str, str]) -> str:
    """All placeholders at once: what is filled in is not looked at again."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], word)


def run_command(command: Sequence[str]) -> Ran:
    """Run it, without a shell."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=LONGEST_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Ran(None, f"did not answer within {LONGEST_S} s")
    except OSError as error:
        return Ran(None, f"cannot be run: {error.strerror}")
    return Ran(done.returncode, (done.stderr or done.stdout).strip()[:_MOST_SAID])


def drain(commands: Sequence[Sequence[str]]) -> None:
    """Run them one after another. Raises OSError with what one of them said if it fails."""
    for command in commands:
        if (ran := run_command(command)).failed:
            raise OSError(f"{command[0]}: {ran.said or f'status {ran.status}'}")
