"""Shows workers where their run's shard service is: its address is in the run's folder, next to the key.

Standard library only: this runs in the training process.
"""

import json
import os
import socket
from functools import partial
from pathlib import Path
from typing import Final

from kair_mitigate.orders import KEY, read_key
from kair_mitigate.restarts import RUN_FOLDER, run_folder, write_whole
from kair_mitigate.shards.client import ShardClient
from kair_mitigate.shards.connection import Address
from kair_mitigate.shards.shard import AllOverError

ADDRESS: Final = "shards.json"
_MOST_BYTES: Final = 4096


def publish(folder: Path, address: Address, *, over: bool = False) -> None:
    """Write the service's address; `over` means it has ended because nothing is left to claim. Raises OSError."""
    write_whole(folder / ADDRESS, json.dumps({"host": address[0], "port": address[1], "over": over}).encode())


def find(folder: Path) -> tuple[Address, bytes]:
    """Return the address and key of the run's service.

    Raises OSError if they are missing or incomplete, AllOverError if the service has ended normally, and RunKeyError if
    the key cannot be trusted.
    """
    with (folder / ADDRESS).open("rb") as file:
        text = file.read(_MOST_BYTES)
    try:
        address = json.loads(text)
        host, port, over = address["host"], address["port"], address["over"]
    except (ValueError, TypeError, LookupError, RecursionError):
        host, port, over = None, None, False
    if not isinstance(host, str) or not isinstance(port, int) or not 0 < port < 1 << 16:
        raise ConnectionError(f"{folder / ADDRESS} holds no address")
    if over is True:
        raise AllOverError("all epochs are over, and the shard service has ended")
    (folder / KEY).stat()
    return (host, port), read_key(folder)


def client_of_run(worker: str | None = None) -> ShardClient:
    """Return the client of this process. Raises RuntimeError outside of a run."""
    folder = run_folder()
    if folder is None:
        raise RuntimeError(
            f"this process belongs to no run: start it by `kair mitigate run`, or set {RUN_FOLDER}=<store>/JOB/mitigate"
        )
    return ShardClient.found_by(partial(find, folder), worker or default_name())


def default_name() -> str:
    """Return host and rank, which stay the same after a restart; without a rank, host and process id."""
    return f"{socket.gethostname()}-{os.environ.get('RANK') or f'pid{os.getpid()}'}"
