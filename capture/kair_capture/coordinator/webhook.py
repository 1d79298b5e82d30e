"""Posts alerts as JSON to a URL, in a separate thread that nothing waits for.

The URL may contain a token: only its host is ever shown.
"""

import html
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException
from typing import Final
from urllib.parse import urlsplit

import msgspec

from kair_capture.coordinator.alert_text import in_words
from kair_engine import no_redirects
from kair_engine.results.watch import Alert

TIMEOUT_S: Final = 5.0
PAUSES_S: Final = (1.0, 4.0, 16.0)
"""Seconds between attempts; after the last the alert is dropped."""
MOST_WAITING: Final = 100
"""As many as the status keeps."""
_LATER: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class Webhook:
    """`post` queues an alert and returns at once; if too many wait, the new one is dropped and counted."""

    def __init__(
        self,
        url: str,
        job: str,
        say: Callable[[str], None] = lambda _: None,
        *,
        timeout_s: float = TIMEOUT_S,
        pauses_s: tuple[float, ...] = PAUSES_S,
    ) -> None:
        """Raise ValueError unless `url` is a host's URL with http:// or https://."""
        self._host = host_of(url)
        self._url, self._job, self._say = url, job, say
        self._timeout_s, self._pauses_s = timeout_s, pauses_s
        self._opener = no_redirects.opener()
        self._waiting: queue.Queue[Alert | None] = queue.Queue(MOST_WAITING)
        self._ending = threading.Event()
        self._has_told = False
        self._told = threading.Lock()
        self.sent = 0
        """Alerts that were accepted, with a status of 2xx."""
        self.dropped = 0
        """Alerts that were dropped."""
        self._thread = threading.Thread(target=self._post_all, name="webhook", daemon=True)
        self._thread.start()

    def post(self, alert: Alert) -> None:
        """Queue an alert."""
        try:
            self._waiting.put_nowait(alert)
        except queue.Full:
            self._drop(f"{MOST_WAITING} wait already")

    def close(self) -> None:
        """Try waiting alerts once more, for as long as one attempt may take."""
        self._ending.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return  # too far behind to wait for
        self._thread.join(self._timeout_s)

    def _post_all(self) -> None:
        while (alert := self._waiting.get()) is not None:
            why_not = self._tried(self._request(alert))
            if why_not is None:
                self.sent += 1
            else:
                self._drop(why_not)

    def _tried(self, request: urllib.request.Request) -> str | None:
        """Return why the request was not accepted, after all attempts; None if it was."""
        why_not = None
        for pause in (*self._pauses_s, None):
            why_not, again = self._attempt(request)
            if why_not is None or not again or pause is None or self._ending.wait(pause):
                break
        return why_not

    def _attempt(self, request: urllib.request.Request) -> tuple[str | None, bool]:
        """Return why it was not accepted (None if it was), and whether a retry may help."""
        try:
            with self._opener.open(request, timeout=self._timeout_s):
                return None, False
        except urllib.error.HTTPError as error:
            error.close()
            return f"HTTP status {error.code}", error.code >= HTTPStatus.INTERNAL_SERVER_ERROR or error.code in _LATER
        except urllib.error.URLError as error:
            return str(getattr(error.reason, "strerror", None) or error.reason), True
        except (OSError, HTTPException) as error:
            return str(error) or type(error).__name__, True

    def _request(self, alert: Alert) -> urllib.request.Request:
        # In chats <…> and &…; are commands.
        text = html.escape(f"kair: job {self._job}, {in_words(alert)}", quote=False)
        body = msgspec.json.encode({**msgspec.to_builtins(alert), "job": self._job, "text": text})
        headers = {"Content-Type": "application/json", "User-Agent": "kair"}
        return urllib.request.Request(self._url, body, headers, method="POST")

    def _drop(self, why: str) -> None:
        with self._told:
            self.dropped += 1
            first, self._has_told = not self._has_told, True
        if first:
            shown = "".join(one if one.isprintable() else "?" for one in why)[:200]
            self._say(f"an alert did not reach {self._host}: {shown}; further ones are only counted")


def host_of(url: str) -> str:
    """Return the host, which may be shown.

    Raises ValueError, without the URL in its text, if it is not usable.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a webhook is a URL such as https://chat.example/hooks/…")
    if not (url.isascii() and url.isprintable()) or " " in url or "@" in parts.netloc:
        raise ValueError("the webhook's URL has a space, a character that URLs do not have, or a user's name")
    _ = parts.port  # raises if it is not a number
    return parts.hostname
