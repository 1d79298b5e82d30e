"""Takes a host out of its scheduler's hands: the commands of Slurm and Kubernetes, printed, or run if one says so."""

import re
import shutil
import subprocess

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
LONGEST_S = 60


def drain_commands(host: str, reason: str) -> list[list[str]]:
    """Of the schedulers that are installed here; of both where none is. Raises ValueError for what names no host."""
    if not _HOST.fullmatch(host):
        raise ValueError(f"{host!r} is no host's name")
    known = {
        "scontrol": ["scontrol", "update", f"NodeName={host}", "State=DRAIN", f"Reason={reason}"],
        "kubectl": ["kubectl", "cordon", host],
    }
    return [command for program, command in known.items() if shutil.which(program)] or list(known.values())


def drain(commands: list[list[str]]) -> None:
    """Runs them one after another. Raises OSError with what one of them said if it fails."""
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST_S)
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{command[0]} did not answer within {LONGEST_S} s") from error
        if done.returncode:
            raise OSError(f"{command[0]}: {(done.stderr or done.stdout).strip()[:300] or f'status {done.returncode}'}")
