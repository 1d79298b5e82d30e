"""HTTP requests that go to the address they were made for, and to no other.

Another address, perhaps of another host, is nobody's that was told to have what a request holds: a password, alerts.
"""

import urllib.request


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        """Leaves the answer as it is: an HTTPError with its status."""


def opener() -> urllib.request.OpenerDirector:
    """Open requests as `urllib.request.urlopen` does, and follow no redirect."""
    return urllib.request.build_opener(_NoRedirects)
