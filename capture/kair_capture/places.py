"""Where capture keeps what it shares: in a job's folder of the store, and beside it on each host."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from kair_capture.files import object_in

DEFAULT_PORT: Final = 7433


class JobPlaces:
    """The files of one job in the store, all below its folder."""

    def __init__(self, store: Path, job: str) -> None:
        self.store: Final = store
        self.job: Final = job
        self.folder: Final = store / job
        """The job's, which has its `job.json` once something was committed."""
        self.delivered: Final = self.folder / "fragments"
        """Fragments that agents delivered and the coordinator has not committed yet: `host=<h>/*.parquet`."""
        self.steps: Final = self.folder / "steps"
        """Every rank's step times."""
        self.scopes: Final = self.folder / "scopes"
        """Sums of the script's own scopes, for every step of every rank."""
        self.hangs: Final = self.folder / "hangs"
        """What ranks answered when the job stood still, a folder for each time."""
        self.confirm: Final = self.folder / "confirm"
        """What `kair confirm` found, a JSON file for each time."""
        self.evidence: Final = self.folder / "evidence"
        """What is known of hosts, devices, links and processes: `**/*.parquet`, and `**/identity*.json` of ranks."""
        self.capture: Final = self.folder / "capture"
        """The coordinator's own."""
        self.key: Final = self.capture / "key"
        """The key of the job's datagrams, where no other file is named."""
        self.address: Final = self.capture / "coordinator.json"
        """Where the coordinator is to be reached, for agents that are not told."""
        self.status: Final = self.capture / "status.json"
        """How the job is doing, rewritten every second or so."""
        self.windows: Final = self.capture / "windows.json"
        """What stragglers cost in each sampled window, as it was worked out."""
        self.alerts: Final = self.capture / "alerts.ndjson"
        """What was noticed, a JSON object a line."""

    def hang(self, number: int) -> Path:
        """Of one time."""
        return self.hangs / str(number)


def store_root(environment: "os._Environ[str] | dict[str, str]" = os.environ) -> Path:
    """$KAIR_STORE, else the store in the user's data folder, which is the one of the `kair` command.

    For a URL the folder that mirrors it.
    """
    if named := environment.get("KAIR_STORE"):
        return _mirror(Path(named), environment) if ":" in named else Path(named)
    from platformdirs import user_data_path

    return user_data_path("kair", appauthor=False) / "store"


def _mirror(place: Path, environment: "os._Environ[str] | dict[str, str]") -> Path:
    from platformdirs import user_cache_path

    from kair_engine.store.remote import mirror_of, url_in

    url = url_in(place)
    cache = environment.get("KAIR_CACHE")
    return place if url is None else mirror_of(url, Path(cache) if cache else user_cache_path("kair", appauthor=False))


def address_of(text: str) -> tuple[str, int]:
    """`host`, `host:port` or `[ipv6]:port` as a pair. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")) or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) >= 1 << 16:
        raise ValueError(f"an address is host:port, got {text[:80]!r}")
    return host, int(port)


def address_in(file: Path) -> tuple[str, int] | None:
    """Where the store says that the coordinator is."""
    from kair_engine.trace.files import read_kept

    with suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
        found = object_in(read_kept(file))
        return address_of(f"[{found['host']}]:{int(found['port'])}")
    return None
