"""Alerts that are posted: what arrives, and that nobody waits where it does not. Servers are real, on the loopback."""

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.live_status import SLOW
from support.patience import PATIENCE_S

from kair_capture.coordinator.alert_text import in_words
from kair_capture.coordinator.coordinator import Coordinator, CoordinatorSettings
from kair_capture.coordinator.webhook import MOST_WAITING, Webhook
from kair_capture.places import JobPlaces
from kair_engine.errors import UsageError
from kair_tui.commands import coordinator as command


class Receiver:
    """A server that answers each request with the next status, then with 200."""

    def __init__(self, *statuses: int, location: str = "") -> None:
        self.statuses = list(statuses)
        self.got: list[dict[str, Any]] = []
        self.arrived = threading.Semaphore(0)
        self.may_answer = threading.Event()
        self.may_answer.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                receiver.arrived.release()
                receiver.may_answer.wait(PATIENCE_S)
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                self.send_header("Location", location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hooks/secret-token"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.may_answer.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receivers() -> Iterator[list[Receiver]]:
    made: list[Receiver] = []
    yield made
    for one in made:
        one.close()


def posted(
    url: str, *, pauses_s: tuple[float, ...] = (0, 0), timeout_s: float = PATIENCE_S
) -> tuple[Webhook, list[str]]:
    """One alert, and the webhook once it is through with it."""
    said: list[str] = []
    webhook = Webhook(url, "job", said.append, pauses_s=pauses_s, timeout_s=timeout_s)
    webhook.post(SLOW)
    webhook._waiting.put(None)
    webhook._thread.join(PATIENCE_S)  # it ends with the second
    return webhook, said


def test_a_coordinator_posts_what_it_writes_down_and_counts_it(tmp_path: Path, receivers: list[Receiver]) -> None:
    receivers.append(chat := Receiver())
    places = JobPlaces(tmp_path, "job<1>")
    settings = CoordinatorSettings(places, ("127.0.0.1", 0), metrics=("127.0.0.1", 0), alert_webhook=chat.url)
    coordinator = Coordinator(settings)
    coordinator._watching.news.append(SLOW)
    coordinator._watch(time.monotonic())
    assert chat.arrived.acquire(timeout=PATIENCE_S)
    assert coordinator._webhook is not None
    coordinator._webhook.close()
    coordinator._write_status(time.monotonic())
    assert coordinator.metrics is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{coordinator.metrics.port}/metrics") as answer:
        told = {one.name: one.samples for one in text_string_to_metric_families(answer.read().decode())}
    assert told["kair_webhook_sent"][0].value == 1
    assert told["kair_webhook_dropped"][0].value == 0
    coordinator.stop()
    coordinator.run()
    written = json.loads(places.alerts.read_text())
    assert "rank 2 on node-1 is slow" in in_words(SLOW)
    text = f"kair: job job&lt;1&gt;, {in_words(SLOW)}"
    assert chat.got == [{**written, "job": "job<1>", "text": text}]


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_a_server_that_has_no_time_is_asked_again(status: int, receivers: list[Receiver]) -> None:
    receivers.append(chat := Receiver(status, status))
    webhook, said = posted(chat.url)
    assert (webhook.sent, webhook.dropped, said) == (1, 0, [])
    assert len(chat.got) == 3


def test_what_stays_refused_is_counted_and_told_once_without_the_token(receivers: list[Receiver]) -> None:
    receivers.append(chat := Receiver(*[500] * 3))
    webhook, said = posted(chat.url)
    assert (webhook.sent, webhook.dropped, len(chat.got)) == (0, 1, 3)
    webhook._drop("again")
    assert said == ["an alert did not reach 127.0.0.1: HTTP status 500; further ones are only counted"]


def test_a_wrong_address_is_not_asked_again(receivers: list[Receiver]) -> None:
    receivers.append(chat := Receiver(404))
    webhook, said = posted(chat.url)
    assert (webhook.dropped, len(chat.got)) == (1, 1)
    assert "HTTP status 404" in said[0]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_alerts_go_nowhere_else(status: int, receivers: list[Receiver]) -> None:
    receivers.append(stranger := Receiver())
    receivers.append(chat := Receiver(status, location=stranger.url))
    webhook, said = posted(chat.url)
    assert (webhook.dropped, len(chat.got), stranger.got) == (1, 1, [])
    assert f"HTTP status {status}" in said[0]


def test_nobody_who_answers_is_told_in_words() -> None:
    gone = Receiver()
    gone.close()
    webhook, said = posted(gone.url)
    assert webhook.dropped == 1
    assert said == ["an alert did not reach 127.0.0.1: Connection refused; further ones are only counted"]


def test_a_server_that_hangs_is_left_after_the_time_out(receivers: list[Receiver]) -> None:
    receivers.append(chat := Receiver())
    chat.may_answer.clear()
    webhook, said = posted(chat.url, pauses_s=(), timeout_s=0.05)
    assert webhook.dropped == 1
    assert "timed out" in said[0]


def test_who_posts_never_waits_and_what_is_too_much_is_counted(receivers: list[Receiver]) -> None:
    receivers.append(chat := Receiver())
    chat.may_answer.clear()
    said: list[str] = []
    webhook = Webhook(chat.url, "job", said.append, timeout_s=PATIENCE_S)
    webhook.post(SLOW)
    assert chat.arrived.acquire(timeout=PATIENCE_S)
    for _ in range(MOST_WAITING + 3):
        webhook.post(SLOW)
    assert webhook.dropped == 3
    assert said == ["an alert did not reach 127.0.0.1: 100 wait already; further ones are only counted"]
    webhook.close()  # does not wait either
    chat.may_answer.set()
    for _ in range(MOST_WAITING):
        assert chat.arrived.acquire(timeout=PATIENCE_S)
    webhook.close()
    assert webhook.sent == 1 + MOST_WAITING


@pytest.mark.parametrize(
    "url",
    [
        "ftp://chat.example/secret-token",
        "file:///secret-token",
        "chat.example/secret-token",
        "https://",
        "https://user:secret-token@chat.example/",
        "https://chat.example/secret-token\r\nHost: other",
        "https://chat.example:port/secret-token",
        "https://[chat.example/secret-token",
        "https://chat.example/secret-tokén",
    ],
)
def test_what_is_no_webhook_is_refused_and_its_token_not_shown(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="--alert-webhook") as refused:
        command.run(tmp_path, job="job", alert_webhook=url)
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("KAIR_ALERT_WEBHOOK", url)
    with pytest.raises(UsageError, match="KAIR_ALERT_WEBHOOK"):
        command.run(tmp_path, job="job")
    assert not any(tmp_path.iterdir())
