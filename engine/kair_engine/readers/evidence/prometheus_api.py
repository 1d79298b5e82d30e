"""Reads answers of Prometheus: files with the JSON of `query_range` or `query`, and live servers.

Only the query is sent. Other servers with this interface (Thanos, Mimir, VictoriaMetrics) work the same way.
"""

import base64
import re
import urllib.error
import urllib.request
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlencode, urlsplit

import msgspec

from kair_engine import no_redirects
from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.readers.evidence.opening import read_bounded
from kair_engine.readers.evidence.prometheus_names import HOST_NAMES
from kair_engine.readers.evidence.prometheus_series import METRICS, Samples
from kair_engine.trace.evidence_table import EvidenceFile
from kair_engine.trace.evidence_time import JobTime, Near
from kair_engine.trace.measures import EvidenceSource, shown

KIND: Final = "prometheus"
MOST_JSON: Final = 512 << 20
"""Largest file, which is read as a whole."""
TIMEOUT_S: Final = 30.0
MOST_POINTS: Final = 11_000
"""Values of one series in one answer; a server refuses more."""
_MOST_ANSWER: Final = 128 << 20
"""Largest answer; beyond it, the query is split into shorter times."""
_TOGETHER: Final = 25
"""Metrics per query."""
_TOO_MUCH: Final = (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.GATEWAY_TIMEOUT)
"""Statuses of a query that loads too much or takes too long, and is retried in halves."""
_STALE: Final = "an answer of Prometheus repeats the last scrape at each step: a change shows up to a scrape later"
_OF_CORES: Final = {"node_cpu_seconds_total": "sum", "node_cpu_scaling_frequency_hertz": "avg"}
"""Metrics with one series per core, a hundred times as many as all others, which the server aggregates."""
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")
_LABELS: Final = ("Hostname", "hostname", "node", "nodename")


def fits(name: str, head: bytes) -> bool:  # noqa: ARG001  (all importers are asked alike)
    """Return whether the file begins like an answer of the server."""
    return head.lstrip()[:1] == b"{" and b'"resultType"' in head and b'"result"' in head


class _Data(msgspec.Struct):
    result: list[msgspec.Raw]


class _Answer(msgspec.Struct):
    """An answer whose series are decoded one by one: all of them as objects take ten times the memory."""

    data: _Data

    def series(self, near: Near) -> Iterator[Any]:
        """Yield its series, with the values that are near."""
        for one in self.data.result:
            with suppress(ValueError, RecursionError):
                of = msgspec.json.decode(one, type=_Series)
                yield {"metric": of.metric, "values": [_decoded(value) for value in _nearest(of.values, near)]}
                continue
            yield _decoded(one)


class _Series(msgspec.Struct):
    metric: dict[str, Any]
    values: list[msgspec.Raw]


def _nearest(values: list[msgspec.Raw], near: Near) -> list[msgspec.Raw]:
    """Return those of a series, which are in order of time, that are near; all where one of these is damaged."""

    def time_of(at: int) -> int:
        point = _point(_decoded(values[at]))
        if point is None:
            raise ValueError
        return point[0]

    if len(values) < _FEW:
        return values
    try:
        first, last = time_of(0), time_of(-1)
        near.window(first)
        if (window := near.window(time_of(1))) is None:
            return values
        begin = bisect_left(range(len(values)), window.begin_ns, key=time_of)
        end = bisect_right(range(len(values)), window.end_ns, lo=begin, key=time_of)
    except ValueError:
        return values
    if end - begin < len(values):
        near.pass_over(len(values) - (end - begin), first, last)
    return values[begin:end]


_FEW: Final = 64
"""Values that are looked at one by one."""


def read(path: Path, limit: int = MOST_JSON, *, when: JobTime | None = None) -> EvidenceFile:
    """Return the rows of a file with one answer, or one per line; with `when`, without values far from that time.

    Raises InputError if nothing in it can be read.
    """
    content = read_bounded(path, limit)
    samples, near = Samples(), Near(when)
    try:
        answers: list[object] = [_whole(content)]
    except (ValueError, RecursionError) as error:
        answers = [answer for line in content.splitlines() if (answer := _decoded(line)) is not None]
        samples.passed_over += sum(bool(line.strip()) for line in content.splitlines()) - len(answers)
        if not answers:
            raise InputError(f"{path} is no JSON, or cut off: {shown(str(error))}", "save the answer again") from error
    for answer in answers:
        take_answer(samples, answer, path.name, near)
    if samples.is_empty and not near.passed_over:
        raise InputError(
            f"{path}: no metric in it is one that Kair knows",
            "Kair reads metrics of dcgm-exporter, node_exporter and device-metrics-exporter",
        )
    found = samples.evidence(EvidenceSource(name=path.name, kind=KIND, clock="unix", notes=(_STALE,)))
    return replace(found, sources=tuple(map(near.with_far, found.sources)))


def _whole(content: bytes) -> object:
    """Return an answer. Raises ValueError, RecursionError."""
    with suppress(msgspec.ValidationError):
        return msgspec.json.decode(content, type=_Answer)
    return msgspec.json.decode(content)


def _decoded(line: bytes | msgspec.Raw) -> Any:  # noqa: ANN401
    with suppress(ValueError, RecursionError):
        return msgspec.json.decode(line)
    return None


def take_answer(samples: Samples, answer: object, where: str, near: Near | None = None) -> int:
    """Add the series of a matrix or a vector, if `near`, to the samples; return the number of series in it."""
    near, seen = Near(None) if near is None else near, 0
    data = answer.get("data") if isinstance(answer, dict) else None
    result = data.get("result") if isinstance(data, dict) else None
    if not isinstance(answer, _Answer) and not isinstance(result, list):
        samples.passed_over += 1
        return 0
    for one in answer.series(near) if isinstance(answer, _Answer) else result or ():
        seen += 1
        labels = one.get("metric") if isinstance(one, dict) else None
        if not isinstance(labels, dict):
            samples.passed_over += 1
            continue
        texts = {name: value for name, value in labels.items() if isinstance(value, str)}
        metric = texts.get("__name__", "")
        values = one.get("values") if isinstance(one.get("values"), list) else [one.get("value")]
        series = samples.series(metric, texts, f"{where}: {metric}")
        if series is None:
            samples.passed_over += 0 if metric == HOST_NAMES else len(values)
            continue
        for value in values:
            point = _point(value)
            if point is not None and not near.has(point[0]):
                near.passed_over += 1
                continue
            samples.passed_over += point is None or not series.add(*point)
    return seen


def _point(value: object) -> tuple[int, float] | None:
    """Return [seconds, "value"] as nanoseconds and a number; None for anything else."""
    if not isinstance(value, list) or len(value) != 2 or isinstance(value[0], bool):
        return None
    try:
        # Answers have milliseconds, which a float of seconds does not hold exactly.
        return round(float(value[0]) * 1e3) * 10**6, float(value[1])
    except (TypeError, ValueError, OverflowError):
        return None


def fetch(
    url: str,
    begin_ns: int,
    end_ns: int,
    step_s: float,
    hosts: Sequence[str] = (),
    *,
    timeout_s: float = TIMEOUT_S,
) -> EvidenceFile:
    """Return all known metrics of the Prometheus server at `url` between two Unix times, one value every `step_s`.

    Only series that name one of `hosts` are queried, or all if there are none. Raises InputError if the address is
    invalid, the server does not answer, or it has none of the metrics. The address may hold a user and a password for
    the server.
    """
    if end_ns < begin_ns or not step_s > 0:
        raise InputError("no time to query: it ends before it begins, or its step is not above 0")
    server = _Server(url, timeout_s)
    span = _Span(begin_ns / 1e9, end_ns / 1e9, step_s)
    wanted = [host for host in hosts if _HOST_NAME.fullmatch(host)]
    samples, notes = Samples(), [_STALE]
    selectors = _selectors(wanted, server.instances(wanted, span)) if wanted else [""]
    found = _ask_all(server, span, selectors, samples)
    if wanted and not found:
        notes.append("no series of the server names the job's hosts: every host it knows was queried")
        found = _ask_all(server, span, [""], samples)
    if samples.is_empty:
        raise InputError(
            f"{server.name} has none of the metrics that Kair knows between the times of the recording",
            "check the address, and how long the server keeps metrics",
        )
    source = EvidenceSource(name=server.name, kind=KIND, clock="unix", interval_s=step_s, notes=tuple(notes))
    return samples.evidence(source)


def _ask_all(server: "_Server", span: "_Span", selectors: Sequence[str], samples: Samples) -> int:
    """Query all metrics; return the number of series."""
    alone = [name for name in METRICS if name not in _OF_CORES]
    queries: list[tuple[str, str | None]] = []
    for first in range(0, len(alone), _TOGETHER):
        names = "|".join(alone[first : first + _TOGETHER])
        queries.append((" or ".join(f'{{__name__=~"{names}"{selector}}}' for selector in selectors), None))
    for name, together in _OF_CORES.items():
        of_all = " or ".join(f"{name}{{{selector.removeprefix(',')}}}" for selector in selectors)
        queries.append((f"{together} without (cpu) ({of_all})", name))
    return sum(
        take_answer(samples, _named(answer, name), server.name)
        for query, name in queries
        for answer in server.ask(query, span)
    )


def _named(answer: dict[str, Any], name: str | None) -> dict[str, Any]:
    """Return the answer with the name of its metric, which is lost in aggregation."""
    if name is not None:
        for one in _results(answer):
            one["metric"]["__name__"] = name
    return answer


def _results(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    data = answer.get("data")
    result = data.get("result") if isinstance(data, dict) else None
    for one in result if isinstance(result, list) else ():
        if isinstance(one, dict) and isinstance(one.get("metric"), dict):
            yield one


def _selectors(hosts: Iterable[str], instances: Iterable[str]) -> list[str]:
    """Return matchers of labels that name one of the hosts, with or without its domain and port."""
    names = _either(hosts)
    addresses = "|".join(part for part in (names, _either(instances)) if part)
    selectors = [f',{label}=~"(?:{names})(?:[.].*)?"' for label in _LABELS]
    return [*selectors, f',instance=~"(?:{addresses})(?:[.].*)?(?::[0-9]+)?"']


def _either(names: Iterable[str]) -> str:
    return "|".join(name.replace(".", "[.]") for name in dict.fromkeys(names))


@dataclass(frozen=True)
class _Span:
    """Times of the requested values: from begin to end (Unix seconds, inclusive) in steps."""

    begin_s: float
    end_s: float
    step_s: float

    @property
    def steps(self) -> int:
        """Return the number of times after the first one."""
        return int((self.end_s - self.begin_s) / self.step_s + 1e-9)

    def parts(self, most: int) -> "Iterator[_Span]":
        """Yield spans of at most `most` times each, one step apart."""
        for first in range(0, self.steps + 1, most):
            last = min(first + most - 1, self.steps)
            yield _Span(self.begin_s + first * self.step_s, self.begin_s + last * self.step_s, self.step_s)


class _TooMuch(Exception):  # noqa: N818  (no error: it is asked for in parts)
    """Raised if one answer cannot hold the result; its text is the server's reason."""


class _Server:
    """A server to query; its name is shown, never the user or the password in its address."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """Raise InputError if `url` is not an address of a server."""
        try:
            parts = urlsplit(url.strip())
            port = "" if parts.port is None else f":{parts.port}"
        except ValueError as error:
            raise InputError(f"no address of a server: {shown(str(error))}", "give http://HOST:PORT") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError("no address of a server, which begins with http:// or https://", "give http://HOST:PORT")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.name = shown(f"{host}{port}")
        self._base = f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"
        self._headers = {"Accept": "application/json"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        self._timeout_s = timeout_s
        self._opener = no_redirects.opener()

    def ask(self, query: str, span: _Span) -> Iterator[dict[str, Any]]:
        """Yield the answers that together cover the span. Raises InputError."""
        waiting = list(span.parts(MOST_POINTS))[::-1]
        while waiting:
            part = waiting.pop()
            try:
                yield self._range(query, part)
            except _TooMuch as error:
                if part.steps == 0:
                    raise InputError(
                        f"{self.name} refuses the query: {error}", "name the job's hosts, or ask for less"
                    ) from error
                waiting += list(part.parts((part.steps + 2) // 2))[::-1]

    def instances(self, hosts: Sequence[str], span: _Span) -> list[str]:
        """Return the addresses, without ports, at which node_exporter is scraped on these hosts."""
        query = f'max_over_time({HOST_NAMES}{{nodename=~"(?:{_either(hosts)})(?:[.].*)?"}}[1h])'
        end = _Span(span.end_s, span.end_s, span.step_s)
        found = {
            re.sub(r":\d+$", "", str(one["metric"].get("instance", "")))
            for answer in self.ask(query, end)
            for one in _results(answer)
        }
        return sorted(one for one in found if _HOST_NAME.fullmatch(one))

    def _range(self, query: str, span: _Span) -> dict[str, Any]:
        form = {"query": query, "start": f"{span.begin_s:.3f}", "end": f"{span.end_s:.3f}", "step": f"{span.step_s:g}"}
        request = urllib.request.Request(f"{self._base}/api/v1/query_range?{urlencode(form)}", headers=self._headers)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                content = response.read(_MOST_ANSWER + 1)
        except urllib.error.HTTPError as error:
            raise self._refused(error) from error
        except TimeoutError as error:
            raise self._silent(f"nothing for {self._timeout_s:g} s") from error
        except urllib.error.URLError as error:
            raise self._silent(str(error.reason)) from error
        except (OSError, HTTPException, ValueError) as error:
            raise self._silent(str(error) or type(error).__name__) from error
        if len(content) > _MOST_ANSWER:
            raise _TooMuch(f"an answer of more than {_MOST_ANSWER >> 20} MB")
        answer = _decoded(content)
        if not isinstance(answer, dict) or answer.get("status") != "success":
            raise InputError(
                f"{self.name} does not answer as Prometheus does: {shown(content[:200].decode('utf-8', 'replace'))}",
                "give the address of the server's API, without /api/v1/query_range",
            )
        return answer

    def _refused(self, error: urllib.error.HTTPError) -> Exception:
        """Return the exception to raise for an error response."""
        with error:
            try:
                said = _decoded(error.read(1 << 16))
            except (OSError, HTTPException):
                said = None
        reason = said.get("error") if isinstance(said, dict) else None
        words = shown(str(reason or error.reason))
        if error.code in _TOO_MUCH:
            return _TooMuch(words)
        if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return InputError(
                f"{self.name} requires a login ({error.code})", "put it into the address: https://USER:PASSWORD@…"
            )
        if error.code in _REDIRECTS:
            return InputError(f"{self.name} redirects to another address ({error.code})", "give that one")
        return InputError(f"{self.name} refuses the query ({error.code}): {words}", "check the address")

    def _silent(self, reason: str) -> InputError:
        return InputError(f"{self.name} does not answer: {shown(reason)}", "check the address, and whether it is up")


_REDIRECTS: Final = (301, 302, 303, 307, 308)
