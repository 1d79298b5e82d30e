"""An endpoint for Prometheus: the status as text, on request."""

import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kair_engine.results.runs.watch import WatchResult


def lines_of(status: WatchResult) -> Iterator[str]:
    """The metrics in Prometheus' text format."""
    job = _label(status.job)
    yield from _metric("kair_step", "The last step that nine in ten ranks reached.", [(f'job="{job}"', status.step)])
    if status.step_time_us is not None:
        step_s = status.step_time_us / 1e6
        yield from _metric("kair_step_seconds", "Median of the last steps.", [(f'job="{job}"', step_s)])
    of_ranks = [(f'job="{job}",rank="{one.rank}",host="{_label(one.host or "")}"', one) for one in status.ranks]
    yield from _metric(
        "kair_self_seconds",
        "A rank's step without what it waited for others, median of the last steps.",
        [(label, one.self_time_us / 1e6) for label, one in of_ranks if one.self_time_us is not None],
    )
    yield from _metric("kair_slow", "1 for a rank that is slow.", [(label, int(one.slow)) for label, one in of_ranks])
    of_hosts = [(f'job="{job}",host="{_label(one.host)}"', one) for one in status.hosts]
    silent = [(label, int(one.silent)) for label, one in of_hosts]
    yield from _metric("kair_host_silent", "1 for a host whose agent is not heard.", silent)
    yield from _metric(
        "kair_clock_bound_seconds",
        "How far a host's clock may be off.",
        [(label, one.clock_bound_us / 1e6) for label, one in of_hosts if one.clock_bound_us is not None],
    )
    dropped = [(label, one.drops) for label, one in of_hosts]
    yield from _metric("kair_dropped_records", "Records that found no room, since the agent started.", dropped)
    overhead = [(f'job="{job}"', status.sampling.overhead)]
    yield from _metric("kair_sampling_overhead", "The share of the job's time that sampling took.", overhead)


class MetricsServer:
    """Answers `GET /metrics` and nothing else, in threads of its own."""

    def __init__(self, address: tuple[str, int], status: Callable[[], WatchResult | None]) -> None:
        """Raises OSError where the address cannot be had."""

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                """Answers."""
                found = status()
                if self.path != "/metrics" or found is None:
                    self.send_error(404)
                    return
                body = "".join(f"{line}\n" for line in lines_of(found)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (http.server's name)
                """Says nothing."""

        self._server = ThreadingHTTPServer(address, Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    @property
    def port(self) -> int:
        """The one it has, also where any was asked for."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()


def _metric(name: str, text: str, values: Sequence[tuple[str, float]]) -> Iterator[str]:
    if values:
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} gauge"
        yield from (f"{name}{{{label}}} {value:.9g}" for label, value in values)


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
