"""A chat model behind an OpenAI-compatible address, asked one question at a time."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

from paribus.errors import ParibusError
from paribus.plan.scoring import EndpointJudge

REPLY_TOKENS: Final = 16
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
PASSING: Final = (408, 409, 429)
"""Refusals that are asked again, beside all faults of the server."""
LONGEST_WAIT: Final = 60.0
LONGEST_REPLY: Final = 2**20


def check(setting: EndpointJudge) -> None:
    """Raise ParibusError for an address that is none, or that holds a key, and for a key that is missing."""
    address = urllib.parse.urlsplit(setting.url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ParibusError(
            f"judge.url: {setting.url!r} is no address of a server.",
            way_out="Write it in full, such as http://localhost:8000/v1",
        )
    if "@" in address.netloc or address.query:
        raise ParibusError(
            f"judge.url: the address of {address.hostname} holds more than host and path.",
            way_out="It is recorded in every result: put a key into the environment variable "
            f"{setting.key_variable} and take it out of here.",
        )
    if address.hostname not in LOOPBACK and not os.environ.get(setting.key_variable):
        raise ParibusError(
            f"the judge at {address.hostname} needs a key, and the environment variable "
            f"{setting.key_variable} is not set.",
            way_out=f"export {setting.key_variable}=... (any word where that server asks for no key)",
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirection would take the key to another host."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


class _Later(Exception):
    """The server did not answer and may do so later, after `wait` seconds where it said so."""

    def __init__(self, problem: str, wait: float | None = None) -> None:
        super().__init__(problem)
        self.wait = wait


@dataclass(frozen=True)
class Endpoint:
    """What answers at /v1/chat/completions; the key is read from the environment each time, and not kept."""

    setting: EndpointJudge

    @property
    def address(self) -> str:
        """Return where questions go: a url may end with the server, with /v1 or with the whole path."""
        url = self.setting.url.rstrip("/")
        if url.endswith("/chat/completions"):
            return url
        return f"{url}/chat/completions" if url.endswith("/v1") else f"{url}/v1/chat/completions"

    def reply(self, question: str) -> str:
        """Ask, again where the server is busy or fails; raises ParibusError where it does not answer."""
        for attempt in range(self.setting.retries + 1):
            try:
                return self._asked(question)
            except _Later as fault:
                problem = f"{fault} (asked {attempt + 1} times)"
                if attempt == self.setting.retries:
                    raise self._error(problem, "Run again later: what was judged is kept.") from None
                time.sleep(min(2.0**attempt if fault.wait is None else fault.wait, LONGEST_WAIT))
        raise AssertionError("the last attempt returns or raises")

    def _asked(self, question: str) -> str:
        try:
            answer = json.loads(self._sent(question))
            return answer["choices"][0]["message"]["content"] or ""
        except urllib.error.HTTPError as fault:
            with fault:
                raise self._refused(fault) from None
        except (OSError, http.client.HTTPException) as fault:
            raise _Later(str(getattr(fault, "reason", fault)) or type(fault).__name__) from None
        except (ValueError, LookupError, TypeError):
            raise self._error("what it sent is no chat completion", "Check judge.url.") from None

    def _sent(self, question: str) -> bytes:
        """Send a question and return what comes back."""
        body = {
            "model": self.setting.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": REPLY_TOKENS,
        }
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self.setting.key_variable, "").strip():
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self.address, json.dumps(body).encode(), headers)
        opener = urllib.request.build_opener(_NoRedirect)
        with opener.open(request, timeout=self.setting.timeout_seconds) as found:
            return found.read(LONGEST_REPLY)

    def _refused(self, fault: urllib.error.HTTPError) -> Exception:
        if fault.code >= 500 or fault.code in PASSING:
            seconds = fault.headers.get("Retry-After", "")
            return _Later(f"HTTP {fault.code}", float(seconds) if seconds.isdecimal() else None)
        said = " ".join(fault.read(400).decode("utf-8", "replace").split())
        way_out = "Check judge.url and judge.model."
        if fault.code in (401, 403):
            way_out = f"Check the key in the environment variable {self.setting.key_variable}."
        elif 300 <= fault.code < 400:
            said, way_out = "it names another address, to which no key is sent", "Correct judge.url."
        return self._error(f"HTTP {fault.code}: {said}", way_out)

    def _error(self, what: str, way_out: str) -> ParibusError:
        """Make an error in which no key can stand."""
        key = os.environ.get(self.setting.key_variable, "").strip()
        shown = what.replace(key, "***") if key else what
        return ParibusError(f"the judge {self.setting.model!r} at {self.address}: {shown}", way_out=way_out)
