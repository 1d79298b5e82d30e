"""Runs a run's shard service as a separate process: `kair mitigate shards`."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Final

from kair_capture.files import locked
from kair_mitigate.orders import read_key
from kair_mitigate.records import make_run_folder
from kair_mitigate.shards.connection import Address
from kair_mitigate.shards.looking import ROWS, SHARDS
from kair_mitigate.shards.meeting import publish
from kair_mitigate.shards.service import ShardService
from kair_mitigate.shards.store import ShardStore

_LOCK: Final = "shards.lock"
_ANY: Final = ("", "0.0.0.0", "::")


def serve(
    folder: Path, listen: Address, make: Callable[[ShardStore], None], ended: Event, *, began: Callable[[Address], None]
) -> None:
    """Serve the run's shards until all epochs are over, or `ended` is set.

    `make` receives the store, to create its dataset; `began` receives the address that workers are given.

    Raises BusyError if another process serves them, RunKeyError, OSError, sqlite3.Error, and what `make` raises.
    """
    make_run_folder(folder)
    key = read_key(folder)
    lock = locked(folder / _LOCK)
    try:
        store = ShardStore(folder / SHARDS, rows=folder / ROWS)
        try:
            store.check_file()
            make(store)
            service = ShardService(store, key, host=listen[0], port=listen[1], on_over=ended.set)
            _, port = service.start()
            address = (socket.gethostname() if listen[0] in _ANY else listen[0]), port
            try:
                publish(folder, address)
                began(address)
                ended.wait()
            finally:
                service.stop()
            if store.is_over:
                publish(folder, address, over=True)
        finally:
            store.close()
    finally:
        os.close(lock)
