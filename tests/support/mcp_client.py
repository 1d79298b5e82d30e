"""A client of `kair mcp`, as an agent's program is one."""

import itertools
import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

from support.patience import PATIENCE_S
from support.program import KAIR

LATEST = "2025-06-18"


class Client:
    """One connection. What the server says besides the answer that is waited for stays in `others`."""

    def __init__(self, programs: Path | None, *options: str, version: str = LATEST, **variables: str) -> None:
        """`programs`: the folder with `kair`; None for a process of its own from its start."""
        self.process = subprocess.Popen(
            [*(KAIR if programs is None else (programs / "kair",)), "mcp", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables},
        )
        self._ids = itertools.count(1)
        self.others: list[dict[str, Any]] = []
        client = {"name": "test", "version": "1"}
        self.greeting = self.ask("initialize", protocolVersion=version, capabilities={}, clientInfo=client)
        self.tell("notifications/initialized")

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def tell(self, method: str, **params: object) -> None:
        self.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def request(self, method: str, **params: object) -> int:
        number = next(self._ids)
        self.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())
        return number

    def ask(self, method: str, **params: object) -> dict[str, Any]:
        """The answer, `result` or `error` and all."""
        number = self.request(method, **params)
        while (message := self._read()).get("id") != number:
            self.others.append(message)
        return message

    def call(self, name: str, /, **given: object) -> dict[str, Any]:
        """What a tool answers."""
        result: dict[str, Any] = self.ask("tools/call", name=name, arguments=given)["result"]
        return result

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        end = threading.Timer(PATIENCE_S, self.process.kill)
        end.start()
        line = self.process.stdout.readline()
        end.cancel()
        assert line, "the server went away"
        message: dict[str, Any] = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        return message

    def close(self) -> int:
        """Closes this end; the server's exit status."""
        rest, _ = self.process.communicate(timeout=PATIENCE_S)
        self.others += map(json.loads, rest.splitlines())
        return self.process.returncode
