"""Runs a job's command, and restarts it each time it left as ordered: `kair mitigate run`.

Start one on every host, together, like torchrun. The order is in the checkpoint, so no attempt carries it out twice.
Remaining processes of an attempt die with their torchrun, and its number keeps them from replacing a checkpoint.
"""

import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from types import FrameType

from kair_capture.job.launch import SITE
from kair_mitigate.restarts import ATTEMPT, RUN_FOLDER, attempt_file, generation_of, own, write_whole
from kair_mitigate.shards.looking import SHARDS

LEFT_OUT = "hosts_left_out"
"""One host per line, whose wrapper starts no further attempt."""
NO_LOADER = "no rank made a kair_mitigate.loader"
STATIC = (
    "warning: torchrun --max-restarts can hang at a restart in place unless it has --standalone, or on several hosts"
    " --rdzv-backend c10d"
)
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def environment_of(folder: Path, attempt: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the command."""
    paths = [str(SITE), *filter(None, [environment.get("PYTHONPATH", "")])]
    return {
        # Without a store per attempt, a restart in place would find the addresses of previous processes.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        **environment,
        "PYTHONPATH": ":".join(paths),  # workers die with their torchrun from the start
        RUN_FOLDER: str(folder),
        ATTEMPT: str(attempt),
    }


def run(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    host: str | None = None,
    failures: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Return the exit status of the last attempt, like a shell's if a signal ended it.

    A failed attempt is retried `failures` times. Raises OSError if the command cannot be run.
    """
    host = host or socket.gethostname()
    first = attempt = first_attempt(folder, host)
    if is_static(command):
        say(STATIC)
    while True:
        write_whole(attempt_file(folder, host), str(attempt).encode())
        status = _once(command, environment_of(folder, attempt, environment))
        if status == 0 and not (folder / f"left-{attempt}").exists():
            if not has_loader(folder, first):
                say(f"{NO_LOADER}, so nothing could be resized")
            return 0
        if status != 0:
            if status < 0 or failures == 0:
                return status if status >= 0 else 128 - status
            failures -= 1
        if host in left_out(folder):
            say(f"this host, {host}, is left out from here on")
            return 0
        attempt += 1
        say(f"{'it left as ordered' if status == 0 else f'it failed ({status})'}: attempt {attempt} begins")


def is_static(command: Sequence[str]) -> bool:
    """Return whether this torchrun restarts its workers in place, at a fixed address."""
    words = list(takewhile(lambda word: not word.endswith(".py"), command))
    if not any(Path(word).name == "torchrun" or word == "torch.distributed.run" for word in words):
        return False
    options = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        options[name.replace("_", "-")] = value if equals else following
    is_fixed = "--standalone" not in options and options.get("--rdzv-backend", "static") == "static"
    return is_fixed and options.get("--max-restarts", "0") != "0"


def has_loader(folder: Path, first: int = 0) -> bool:
    """Return whether a rank made a loader in an attempt from `first` on, or workers claim shards instead."""
    begun = (int(path.name.partition("-")[0]) for path in folder.glob("trained/[0-9]*-*.jsonl"))
    return (folder / SHARDS).exists() or any(generation >= generation_of(first) for generation in begun)


def first_attempt(folder: Path, host: str) -> int:
    """Return the next attempt on this host; 0 in a new folder."""
    try:
        return int(attempt_file(folder, host).read_text(encoding="ascii")) + 1
    except (OSError, ValueError):
        return 0


def left_out(folder: Path) -> set[str]:
    """Return the hosts that start no further attempt."""
    try:
        return set((folder / LEFT_OUT).read_text(encoding="utf-8").split("\n")) - {""}
    except OSError:
        return set()


def leave_out(folder: Path, host: str) -> None:
    """Keep a host from starting further attempts. Raises OSError."""
    with open(folder / LEFT_OUT, "a", encoding="utf-8", opener=own) as file:
        file.write(f"{host}\n")


def _once(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command and forward signals to it; return its status, negative if a signal ended it."""
    process = subprocess.Popen(list(command), env=dict(environment))

    def hand_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in _FORWARDED}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
