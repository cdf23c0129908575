"""Requests of a sign-in and their replies, and the challenges of servers.

The procedures of a sign-in (`machine`, `token_endpoint`) do all their I/O through an `AuthIO`. `driver` implements it,
and a test can with replies from memory.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import field
from http import HTTPStatus
from urllib.parse import urlencode

from indusagi.core.json import JsonLike, JsonObject, is_json_object, parse_strict_json
from indusagi.core.records import record
from indusagi.core.tasks import TRANSIENT_STATUSES, Backoff, parse_retry_after
from indusagi.interop.auth.contract import AuthFault, CredentialStore, SignInPrompt

FORM = "application/x-www-form-urlencoded"
_RETRIES = 3
"""How often to retry fetching a document: the user may be waiting for the sign-in."""
_MAX_PAUSE_S = 10.0
"""Report an issuer that wants a longer pause instead."""


@record
class HttpReply:
    """The response to a request, or the reason there is none."""

    status: int
    """0: no response."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """By lower-case name."""
    body: bytes = field(default=b"", repr=False)
    problem: str = ""
    """Why there's no response."""

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def is_transient(self) -> bool:
        """Whether a retry may succeed: no response, or an overloaded or failing server."""
        return not self.status or self.status in TRANSIENT_STATUSES or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR

    def parse_object(self) -> JsonObject:
        """Return the body's JSON object, or an empty one if it isn't a JSON object."""
        try:
            document = parse_strict_json(self.body)
        except ValueError:
            return {}
        return document if is_json_object(document) else {}


class AuthIO(ABC):
    """What a sign-in needs from outside: requests, pauses, the user and the store."""

    @property
    @abstractmethod
    def store(self) -> CredentialStore:
        """Where sign-ins are stored."""

    @abstractmethod
    def require_prompt(self) -> SignInPrompt:
        """Return the way to the user; raises `SignInRequired` without one."""

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Wait before the next request."""

    @abstractmethod
    async def send(self, url: str, headers: Mapping[str, str], body: bytes | None = None) -> HttpReply:
        """Send a POST with a body, otherwise a GET, whose redirects are followed within its origin."""

    async def fetch_json(self, url: str) -> tuple[HttpReply, JsonObject]:
        """Fetch a JSON document, retrying after transient failures; the object is empty if there is none."""
        headers, backoff = {"accept": "application/json"}, Backoff(longest_s=_MAX_PAUSE_S)
        reply = await self.send(url, headers)
        for _ in range(_RETRIES):
            wanted_s = parse_retry_after(reply.headers.get("retry-after", ""))
            if not reply.is_transient or (wanted_s or 0.0) > _MAX_PAUSE_S:
                break
            await self.pause(backoff.next_pause(wanted_s))
            reply = await self.send(url, headers)
        return reply, reply.parse_object() if reply.is_success else {}

    async def post_form(self, url: str, fields: Mapping[str, str], headers: Mapping[str, str]) -> HttpReply:
        """Send a form (RFC 6749 appendix B)."""
        base = {"accept": "application/json", "content-type": FORM}
        return await self.send(url, {**base, **headers}, urlencode(fields).encode())

    async def post_json(self, url: str, document: JsonLike) -> HttpReply:
        """Send a JSON document."""
        headers = {"accept": "application/json", "content-type": "application/json"}
        return await self.send(url, headers, json.dumps(document).encode())


def build_reply_fault(reply: HttpReply, owner: str, action: str) -> AuthFault:
    """Build the fault of a failed request, with only the response's error code.

    A foreign server writes the error text, which may repeat what we sent.
    """
    if not reply.status:
        return AuthFault(f"{owner}: {action} failed: {reply.problem}", is_transient=True)
    error = reply.parse_object().get("error")
    code = error if isinstance(error, str) and len(error) <= 60 and error.replace("_", "").isalnum() else ""
    shown = f"{code}, HTTP {reply.status}" if code else f"HTTP {reply.status}"
    return AuthFault(f"{owner}: {action} failed ({shown})", error=code, is_transient=reply.is_transient)


# -- challenges -------------------------------------------------------------------------------
#
# A response may have several headers, a header several challenges, and a challenge parameters or a single token. Text
# that doesn't fit the grammar ends the parsing; anything before it counts.


_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_SCHEME = re.compile(rf"[\s,]*({_TOKEN})(?:[ \t]+|(?=,)|$)")
_PARAMETER = re.compile(rf'[\s,]*({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))[ \t]*(?=,|$)', re.DOTALL)
_TOKEN68 = re.compile(r"[A-Za-z0-9._~+/-]+=*[ \t]*(?=,|$)")
_MAX_HEADER_CHARS = 16 * 1024


@record
class Challenge:
    """One challenge: its lower-case scheme, and its parameters by lower-case name."""

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def scopes(self) -> tuple[str, ...]:
        """Scopes that the request needs (RFC 6750 §3)."""
        return tuple(self.parameters.get("scope", "").split())

    @property
    def error(self) -> str:
        """Error code, or empty."""
        return self.parameters.get("error", "")


def parse_challenges(headers: Iterable[str]) -> list[Challenge]:
    """Parse all of a response's `WWW-Authenticate` headers."""
    challenges: list[Challenge] = []
    for header in headers:
        text, position = header[:_MAX_HEADER_CHARS], 0
        while (scheme := _SCHEME.match(text, position)) is not None:
            position, parameters = scheme.end(), dict[str, str]()
            while (parameter := _PARAMETER.match(text, position)) is not None:
                name, quoted, plain = parameter.groups()
                value = re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL) if plain is None else plain
                parameters.setdefault(name.lower(), value)
                position = parameter.end()
            if not parameters and (single := _TOKEN68.match(text, position)) is not None:
                position = single.end()
            challenges.append(Challenge(scheme[1].lower(), parameters))
    return challenges


def find_oauth_challenge(challenges: Iterable[Challenge]) -> Challenge | None:
    """Return the challenge that OAuth can answer: `DPoP` before `Bearer`, which a bound token also satisfies."""
    by_scheme = {challenge.scheme: challenge for challenge in reversed([*challenges])}
    return by_scheme.get("dpop") or by_scheme.get("bearer")
