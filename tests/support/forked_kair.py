"""`kair` for shell scripts, each command a fork of one process: to load Kair takes longer than what most of them ask.

    python forked_kair.py SOCKET

A command has the arguments, folder, variables and streams of the caller, and a process, whose exit status the caller
ends with. Tests of the process itself (its start, signals, terminals) start one of their own.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

_CALLER = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({place!r})
    said = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(asked, [b" "], [0, 1, 2])
    asked.sendall(said)
    asked.shutdown(socket.SHUT_WR)
    sys.exit(int(asked.recv(16)))
"""
_LATE = (
    "kair_engine.readers.kineto.compiled.scanner",
    "kair_engine.recording.opening",
    "kair_engine.recording.job_file",
    "kair_engine.triage.analysis",
    "kair_engine.views.overview",
    "kair_engine.whatif.operators.attribution",
    "kair_engine.whatif.operators.model",
    "kair_tui.commands.mcp_server",
    "kair_tui.render.document",
    "kair_tui.render.page",
    "kair_tui.shell.batch",
    "numpy.ma",
    "platformdirs",
    "rich.table",
)
"""What commands import once they need it. One that is missing here costs time, and changes nothing."""


@contextmanager
def forked_kair(folder: Path) -> Iterator[Path]:
    """A folder with a program `kair`, until this ends."""
    from support.program import STRICT  # this file is a program, too, which has no folder of tests

    place, program = folder / "socket", folder / "kair"
    # A pipe, so that it is known when calls are heard.
    with subprocess.Popen([*STRICT, __file__, str(place)], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        program.write_text(_CALLER.format(python=sys.executable, place=str(place)))
        program.chmod(0o755)
        try:
            yield folder
        finally:
            server.terminate()


def _serve(place: str) -> None:
    from kair_tui.cli.main import run
    from kair_tui.cli.registry import COMMANDS

    for entry in COMMANDS:
        if entry.needs == "trace":
            entry.load_view(), entry.result_type()
    for name in _LATE:
        import_module(name)
    with socket.socket(socket.AF_UNIX) as calls:
        calls.bind(place)
        calls.listen()
        print("ready", flush=True)
        while True:
            call, _ = calls.accept()
            if os.fork() == 0:
                os._exit(_heard(call, run))
            call.close()
            os.waitpid(-1, os.WNOHANG)


def _heard(call: socket.socket, run: Callable[[], int]) -> int:
    _, streams, _, _ = socket.recv_fds(call, 1, 3)
    with call.makefile("rb") as said:
        arguments, folder, variables = json.load(said)
    command = os.fork()
    if command == 0:
        call.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        sys.argv[1:] = arguments
        os._exit(run())
    _, ended = os.waitpid(command, 0)
    call.send(str(os.waitstatus_to_exitcode(ended)).encode())
    return 0


if __name__ == "__main__":
    _serve(sys.argv[1])
