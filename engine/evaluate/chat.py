"""An answerer and a judge that are language models behind an OpenAI-compatible server.

The client needs the standard library alone: it posts to ``<url>/chat/completions`` and reads the first choice. Any
server with that interface serves, a local one too. The wording of the prompts is this project's own.
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from http.client import HTTPException
from typing import Any

from ..errors import AnswerError, ParameterError
from ..records.query import Query
from ..records.record import Record
from .answering import JUDGEMENTS, UNREADABLE

KEY_VARIABLE = "OPENAI_API_KEY"
"""The environment variable with the server's key, unless another one is named."""

_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT = 60.0
_LONGEST_TIMEOUT = 86400.0
_LOCAL = ("localhost", "127.0.0.1", "::1")

_ANSWER = (
    "You answer a user's question from records of earlier conversations. Use the records alone. Later records replace "
    "earlier ones that say otherwise. Answer in one or two short sentences. If the records do not tell, say so."
)
_JUDGE = (
    "You grade an answer against the reference answer of a question. Say 'yes' if it gives what the reference gives, "
    "in any words and possibly with more; 'partial' if it gives a part of it; 'no' otherwise. If the reference says "
    "that the question cannot be answered, an answer that says so is 'yes'. Reply with one word: yes, partial or no."
)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: urllib would carry the key to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class ChatModel:
    """A model behind an OpenAI-compatible server, such as ``https://api.openai.com/v1``.

    The key is read from the environment variable `key_variable` at each call, and is never part of a message. Without
    one no key is sent. A key goes out by https alone, or to this machine. `timeout` is in seconds, for one attempt.
    Busy and failing servers are asked again up to `retries` times, after 1, 2, 4 … seconds or what the server says, at
    most a minute. `temperature` None leaves the field out, as some models want.

    Raises `ParameterError` for what is no URL of a server (user names, queries and fragments are no part of one), and
    for values of the wrong type or out of range.
    """

    url: str
    model: str
    key_variable: str = KEY_VARIABLE
    timeout: float = 60.0
    retries: int = 4
    temperature: float | None = 0.0

    def __post_init__(self) -> None:
        if not _is_server(self.url):
            raise ParameterError(
                "a model's URL must begin with http:// or https:// and name a host, in ASCII and without a user name, "
                f"a query or a fragment, not {self.url!r}"
            )
        if not isinstance(self.model, str) or not self.model:
            raise ParameterError(f"the name of a model must be a string that is not empty, not {self.model!r}")
        if not isinstance(self.key_variable, str):
            raise ParameterError(f"key_variable must name an environment variable, not {self.key_variable!r}")
        if not _is_number(self.timeout) or not 0 < self.timeout <= _LONGEST_TIMEOUT:
            raise ParameterError(f"timeout must be above 0 and at most {_LONGEST_TIMEOUT:g} s, not {self.timeout!r}")
        if not isinstance(self.retries, int) or isinstance(self.retries, bool) or self.retries < 0:
            raise ParameterError(f"retries must be a whole number, 0 or more, not {self.retries!r}")
        if self.temperature is not None and not (_is_number(self.temperature) and self.temperature >= 0):
            raise ParameterError(f"temperature must be a number, 0 or more, or None, not {self.temperature!r}")

    def complete(self, system: str, user: str) -> str:
        """The model's reply to a system message and a user's. Raises `AnswerError`, naming the server."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
        }
        if self.temperature is not None:
            body["temperature"] = self.temperature
        request = urllib.request.Request(
            self.url.rstrip("/") + "/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **self._authorization()},
        )
        return self._read(self._post(request))

    def _authorization(self) -> dict[str, str]:
        key = self._key()
        if not key:
            return {}
        if not (key.isascii() and key.isprintable()):
            raise ParameterError(f"the key in {self.key_variable} holds a line end or another sign that no key has")
        if not self.url.lower().startswith("https:") and not self._is_local():
            raise ParameterError(
                f"{self.url}: the key of {self.key_variable} would go out unencrypted; use https, or name a variable "
                "that is not set to send no key"
            )
        return {"Authorization": f"Bearer {key}"}

    def _key(self) -> str:
        return os.environ.get(self.key_variable, "").strip() if self.key_variable else ""

    def _is_local(self) -> bool:
        return urllib.parse.urlsplit(self.url).hostname in _LOCAL

    def _shorten(self, content: bytes) -> str:
        """The begin of a server's reply, for messages. Some servers repeat the key."""
        text, key = " ".join(content.decode("utf-8", "replace").split()), self._key()
        return (text.replace(key, "(the key)") if key else text)[:200] or "(nothing)"

    def _post(self, request: urllib.request.Request) -> bytes:
        # A proxy would see the key that goes to this machine without encryption.
        handlers = [urllib.request.ProxyHandler({})] if self._is_local() else []
        opener = urllib.request.build_opener(_NoRedirect, *handlers)
        for attempt in range(self.retries + 1):
            wait = min(2.0**attempt, _LONGEST_WAIT)
            try:
                with opener.open(request, timeout=self.timeout) as response:
                    content: bytes = response.read()
                    return content
            except urllib.error.HTTPError as error:
                with error:
                    explanation = self._shorten(error.read())
                    failure = f"{self.url} answers {error.code} {error.reason}: {explanation}"
                if error.code in (401, 403):
                    raise AnswerError(f"{failure}; the key is read from ${self.key_variable}") from None
                if error.code not in _RETRIED:
                    raise AnswerError(failure) from None
                wait = _read_wait(error.headers.get("Retry-After"), wait)
            except TimeoutError:
                failure = f"{self.url} did not answer within {self.timeout:g} seconds"
            except (OSError, HTTPException) as error:
                reason = getattr(error, "reason", error)
                failure = f"{self.url} cannot be reached: {reason or type(error).__name__}"
                if isinstance(reason, TimeoutError):
                    failure = f"{self.url} did not answer within {self.timeout:g} seconds"
            if attempt < self.retries:
                time.sleep(wait)
        raise AnswerError(f"{failure}; asked {self.retries + 1} times")

    def _read(self, content: bytes) -> str:
        try:
            reply = json.loads(content)["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError, RecursionError):
            reply = None
        if not isinstance(reply, str):
            raise AnswerError(f"{self.url}: not the reply of an OpenAI-compatible server: {self._shorten(content)}")
        return reply.strip()


@dataclass(frozen=True)
class ChatAnswerer:
    """Answers questions by a model. It gets the records in the order of their times, with their dates."""

    model: ChatModel

    def __call__(self, question: Query, records: Sequence[Record], /) -> str:
        """The model's answer. Raises `AnswerError`."""
        ordered = sorted(records, key=lambda record: (record.time is not None, record.time or 0.0))
        parts = [f"Record {number}{_dated(record.time)}:\n{record.text}" for number, record in enumerate(ordered, 1)]
        parts.append(f"Question{_dated(question.now)}: {question.text}")
        return self.model.complete(_ANSWER, "\n\n".join(parts))


@dataclass(frozen=True)
class ChatJudge:
    """Judges answers by a model. A reply without one of the three words is ``unreadable``."""

    model: ChatModel

    def __call__(self, question: Query, gold: str, answer: str, /) -> str:
        """``yes``, ``partial``, ``no`` or ``unreadable``. Raises `AnswerError`."""
        prompt = f"Question: {question.text}\n\nReference answer: {gold}\n\nAnswer to grade: {answer}"
        return read_judgement(self.model.complete(_JUDGE, prompt))


def read_judgement(reply: str) -> str:
    """The first of the words yes, partial and no in a judge's reply, whatever its case; else ``unreadable``."""
    found = next((word for word in re.findall(r"[a-z]+", reply.lower()) if word in JUDGEMENTS[:3]), None)
    return found or UNREADABLE


def _is_server(url: object) -> bool:
    """Whether a client can post below this URL."""
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urllib.parse.urlsplit(url)
        host = (parts.hostname or "").encode("idna")  # raises for a label that is empty or too long
        _ = parts.port  # raises for what is no port
        if "[" in parts.netloc:  # before 3.11.4 Python takes any text in brackets
            ipaddress.ip_address(parts.hostname or "")
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and not set("@?#") & set(url)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _dated(moment: Any) -> str:
    try:
        when = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=moment)
    except (OverflowError, TypeError):
        return ""  # no time, or one beyond the calendar's years
    return f", {when:%A %Y-%m-%d %H:%M}"


def _read_wait(header: str | None, otherwise: float) -> float:
    """What the server says in seconds; `otherwise` where it says nothing, or a date."""
    try:
        seconds = float(header or otherwise)
    except ValueError:
        return otherwise
    return min(max(seconds, 0.0), _LONGEST_WAIT) if seconds == seconds else otherwise
