"""Reduces parts of a recording on a Dask cluster that is there already."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kair_engine.errors import InputError, KairError, UsageError
from kair_engine.trace.model import Trace

if TYPE_CHECKING:
    from distributed import Client

Table = TypeVar("Table")

CONNECT_S: Final = 10
"""How long a scheduler may take to answer."""
PARTS_PER_THREAD: Final = 2
"""That are under way: as many again wait beside a worker, so that it never does."""
_ALIKE: Final = "install the same Kair and Dask on all workers, and start them again"


class DaskWorkers:
    """The workers of a running cluster, which see the recording's files under the same paths.

    The connection is made when it is first needed, and ends with `close`.
    """

    def __init__(self, scheduler: str) -> None:
        """`scheduler` is an address, `tcp://host:8786`, or the path of a scheduler file."""
        self._scheduler = scheduler
        self._connected: Client | None = None

    def map(self, reduce: Callable[[Trace], Table], trace: Trace, parts: Sequence[Sequence[int]]) -> Iterator[Table]:
        """`reduce` of each part, in order; tables are fetched as they are done, and held nowhere else.

        Raises UsageError where no cluster answers, InputError where a worker cannot read the recording.
        """
        client = self._client()
        threads = sum(client.nthreads().values())
        if not threads:
            raise UsageError(
                f"the Dask cluster at {self._scheduler} has no workers", "start some, or wait for the queue"
            )
        sent = replace(trace, memory=None, held=None, workers=None, known={}, derived=None)
        everywhere = client.scatter(sent, broadcast=True, hash=False)
        waiting, under_way = deque(parts), deque[Any]()
        try:
            while waiting or under_way:
                while waiting and len(under_way) < PARTS_PER_THREAD * threads:
                    under_way.append(client.submit(_reduced, reduce, everywhere, waiting.popleft(), pure=False))
                yield _fetched(under_way.popleft())
        finally:
            # Of a stopped command the rest is of no use.
            client.cancel([*under_way, everywhere], force=True)

    def close(self) -> None:
        """Leaves the cluster as it was."""
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def _client(self) -> "Client":
        if self._connected is None:
            self._connected = _connect(self._scheduler)
        return self._connected


def _reduced(reduce: Callable[[Trace], Table], trace: Trace, steps: Sequence[int]) -> Table:
    from kair_engine.trace.batches import keep_freed_memory

    keep_freed_memory()
    return reduce(trace.select(steps))


def _fetched(table: Any) -> Any:  # noqa: ANN401 - a future of anything
    try:
        return table.result()
    except KairError:
        raise
    except FileNotFoundError as error:
        raise InputError(
            f"a worker does not find {error.filename or error}",
            "the recording (or $KAIR_CACHE) has to be on a file system that all workers share",
        ) from error
    except ModuleNotFoundError as error:
        raise UsageError(f"a worker has no {error.name}", _ALIKE) from error
    except Exception as error:
        if type(error) is RuntimeError and "deserialization" in str(error):
            raise UsageError(f"the cluster cannot run the analysis: {_first_line(error)}", _ALIKE) from error
        if not type(error).__module__.startswith("distributed"):
            raise  # the analysis failed, as it would have here
        raise InputError(
            f"the cluster lost a part of the recording: {_first_line(error)}",
            "a worker that is killed had too little memory: 220 bytes for each operation of the largest step, or 1 GB",
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _connect(scheduler: str) -> "Client":
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise UsageError("--engine dask needs Dask", "pip install 'kair[dask]'") from error
    is_file = "://" not in scheduler and scheduler.endswith(".json")
    try:
        # Heartbeats of a client that is busy with a replay come late, which nobody needs to be told.
        return Client(
            **{"scheduler_file" if is_file else "address": scheduler}, timeout=CONNECT_S, set_as_default=False
        )
    except (OSError, TimeoutError, ValueError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {scheduler}", "--scheduler tcp://HOST:8786, or $DASK_SCHEDULER_ADDRESS"
        ) from error
