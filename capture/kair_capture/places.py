"""Where capture keeps what it shares: in a job's folder of the store, and beside it on each host."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_PORT: Final = 7433


@dataclass(frozen=True)
class JobPlaces:
    """The files of one job in the store, all below its folder."""

    store: Path
    job: str

    @property
    def folder(self) -> Path:
        """The job's, which has its `job.json` once something was committed."""
        return self.store / self.job

    @property
    def delivered(self) -> Path:
        """Fragments that agents delivered and the coordinator has not committed yet: `host=<h>/*.parquet`."""
        return self.folder / "fragments"

    @property
    def steps(self) -> Path:
        """Every rank's step times."""
        return self.folder / "steps"

    @property
    def scopes(self) -> Path:
        """Sums of the script's own scopes, for every step of every rank."""
        return self.folder / "scopes"

    @property
    def hangs(self) -> Path:
        """What ranks answered when the job stood still, a folder for each time."""
        return self.folder / "hangs"

    def hang(self, number: int) -> Path:
        """Of one time."""
        return self.hangs / str(number)

    @property
    def confirm(self) -> Path:
        """What `kair confirm` found, a JSON file for each time."""
        return self.folder / "confirm"

    @property
    def evidence(self) -> Path:
        """What is known of hosts, devices, links and processes: `**/*.parquet`, and `**/identity*.json` of ranks."""
        return self.folder / "evidence"

    @property
    def capture(self) -> Path:
        """The coordinator's own."""
        return self.folder / "capture"

    @property
    def key(self) -> Path:
        """The key of the job's datagrams, where no other file is named."""
        return self.capture / "key"

    @property
    def address(self) -> Path:
        """Where the coordinator is to be reached, for agents that are not told."""
        return self.capture / "coordinator.json"

    @property
    def status(self) -> Path:
        """How the job is doing, rewritten every second or so."""
        return self.capture / "status.json"

    @property
    def alerts(self) -> Path:
        """What was noticed, a JSON object a line."""
        return self.capture / "alerts.ndjson"


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
