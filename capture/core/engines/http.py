"""JSON over HTTP to one server, with retries. Standard library only.

A request is tried again where the answer says that the server or the way to it failed: no
connection, no answer in time, a broken answer, and the statuses 408, 429 and 500 to 599. Any other
status is the server's answer to this request and would be the same again.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError, CoreRunError

AGAIN = {408, 429, *range(500, 600)}
LONGEST_BODY = 300  # characters of an answer in a message


class ServerError(CoreRunError):
    """The server refused a request, or no try got an answer. `status` is None without one."""

    def __init__(self, message: str, status: int | None = None, body: str = "") -> None:
        super().__init__(message)
        self.status, self.body = status, body


class JsonClient:
    """Requests to the server at `url`; `timeout` is in seconds, a try."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        tries: int = 4,
        pause: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"engine.url: {url!r}: not of the form http://HOST:PORT")
        self.url, self.timeout = url.rstrip("/"), timeout
        self.tries, self.pause, self._sleep = tries, pause, sleep
        # the server stands beside the trainer: a proxy of the environment has no part in it
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> Any:
        """The JSON answer to a GET."""
        return self._ask(path, None)

    def post(self, path: str, body: Any) -> Any:
        """The JSON answer to a POST; None where the answer is empty or is not JSON."""
        return self._ask(path, json.dumps(body, allow_nan=False).encode())

    def _ask(self, path: str, data: bytes | None) -> Any:
        request = urllib.request.Request(
            self.url + path, data=data, headers={"Content-Type": "application/json"}
        )
        failure = ""
        status: int | None = None
        for attempt in range(self.tries):
            if attempt:
                self._sleep(self.pause * 2 ** (attempt - 1))
            try:
                with self._opener.open(request, timeout=self.timeout) as answer:
                    text = answer.read()
                return _parsed(text, answer.headers.get_content_type() == "application/json")
            except urllib.error.HTTPError as error:
                status = error.code
                text = error.read().decode("utf-8", "replace")
                failure = f"status {status}: {shown(text)}"
                if status not in AGAIN:
                    raise ServerError(f"{self.url}{path}: {failure}", status, text) from None
            except (OSError, http.client.HTTPException, ValueError) as error:
                status = None
                reason = getattr(error, "reason", None) or error
                failure = f"{type(error).__name__}: {reason}"
        raise ServerError(f"{self.url}{path}: {self.tries} tries, the last {failure}", status)


def _parsed(text: bytes, is_json: bool) -> Any:
    if is_json:
        return json.loads(text)
    try:
        return json.loads(text)
    except ValueError:
        return None


def shown(text: str) -> str:
    """A text on one line, cut."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_BODY else line[:LONGEST_BODY] + "..."
