"""Drains a host in its scheduler: the site's command, Slurm's or Kubernetes', printed or run on request.

A host's name comes from an untrusted recording: it becomes one word of a command, and no shell interprets it.
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
"""Slurm's name for all nodes."""
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
_KNOWN: Final = ("host", "reason", "device", "job")
_NO_TEXT: Final = re.compile(r"[^A-Za-z0-9 ._,:/+%=-]")
"""Characters that a shell or scheduler may interpret: a site's command may pass its arguments on (`ssh`)."""
LONGEST_S: Final = 60
_MOST_SAID: Final = 300


@dataclass(frozen=True)
class Ran:
    """Result of a command; it has no `status` if it could not start or did not end in time."""

    status: int | None
    said: str

    @property
    def failed(self) -> bool:
        """Return whether the command did not succeed."""
        return self.status != 0


def drain_template(text: str) -> list[str]:
    """Return the words of a site's command, with the placeholders `{host}`, `{reason}`, `{device}` and `{job}`.

    Raises ValueError if it is empty or malformed, has no `{host}`, or has another placeholder.
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
    """Return the site's command, else one per scheduler in `schedulers` (`slurm`, `kubernetes`), as words.

    Words of the template stay one word each, whatever is filled in. Raises ValueError for an invalid host name.
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
"""The variable that a scheduler sets in its jobs, and its command-line program."""


def schedulers_here() -> list[str]:
    """Return the schedulers found on this host, or all if none is; a recorded job may have run under another."""
    seen = [
        scheduler
        for scheduler, (variable, program) in _SEEN_BY.items()
        if os.environ.get(variable) or shutil.which(program) is not None
    ]
    return seen or list(_SEEN_BY)


def _plain(text: str) -> str:
    """Return `text` without characters that a shell or an option parser could interpret."""
    return _NO_TEXT.sub("_", text).lstrip("-= ")


def _filled(word: str, values: Mapping[str, str]) -> str:
    """Replace all placeholders at once, so that inserted text is not expanded again."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], word)


def run_command(command: Sequence[str]) -> Ran:
    """Run a command without a shell."""
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
    """Run the commands in order. Raises OSError with a command's output if it fails."""
    for command in commands:
        if (ran := run_command(command)).failed:
            raise OSError(f"{command[0]}: {ran.said or f'status {ran.status}'}")
