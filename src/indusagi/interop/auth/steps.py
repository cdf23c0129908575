"""Steps of the state machine: requests to its driver, and the replies.

A procedure of the machine is a generator. It yields a step, receives its reply, and returns a result; a test can play
the driver with a list of replies. `Steps[T]` is the type of such a procedure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import field
from http import HTTPStatus
from typing import TypeAlias, TypeVar
from urllib.parse import urlencode

from indusagi.core.backoff import TRANSIENT_STATUSES, Backoff, parse_retry_after
from indusagi.core.json import JsonLike, JsonObject, is_json_object, parse_strict_json
from indusagi.core.records import record
from indusagi.interop.auth.contract import AuthFault, CredentialKey, DeviceCode, StoredCredentials

T = TypeVar("T")

FORM = "application/x-www-form-urlencoded"
_RETRIES = 3
"""How often to retry fetching a document: the user may be waiting for the sign-in."""
_MAX_PAUSE_S = 10.0
"""Report an issuer that wants a longer pause instead."""


@record(kw_only=True)
class HttpStep:
    """Send a request. Redirects are never followed to another origin, and never with a body."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    body: bytes | None = field(default=None, repr=False)


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


@record
class RedirectStep:
    """Prepare to receive a redirect; the reply is its URI."""

    registered: Sequence[str] = ()


@record
class AuthorizeStep:
    """Show the user an authorization URL; the reply is the redirect's query parameters."""

    url: str = field(repr=False)


@record
class DeviceStep:
    """Show a code that the user enters on another device."""

    code: DeviceCode


@record
class WaitStep:
    """Wait before the next request."""

    seconds: float


@record
class LoadStep:
    """Load a sign-in by key; the reply is `None` if it doesn't exist."""

    key: CredentialKey


@record
class SaveStep:
    """Save a sign-in."""

    credentials: StoredCredentials


Step: TypeAlias = HttpStep | RedirectStep | AuthorizeStep | DeviceStep | WaitStep | LoadStep | SaveStep
Reply: TypeAlias = HttpReply | StoredCredentials | str | Mapping[str, str] | None
Steps: TypeAlias = Generator[Step, Reply, T]


def send(step: HttpStep) -> Steps[HttpReply]:
    """Send a request.

    Raises:
        TypeError: The driver replied with something else.
    """
    reply = yield step
    if not isinstance(reply, HttpReply):
        raise TypeError(f"the reply to a request is an HttpReply, not {type(reply).__name__}")
    return reply


def fetch_json(url: str) -> Steps[tuple[HttpReply, JsonObject]]:
    """Fetch a JSON document, retrying after transient failures; the object is empty if there is none."""
    step, backoff = HttpStep(url=url, headers={"accept": "application/json"}), Backoff(longest_s=_MAX_PAUSE_S)
    reply = yield from send(step)
    for _ in range(_RETRIES):
        wanted_s = parse_retry_after(reply.headers.get("retry-after", ""))
        if not reply.is_transient or (wanted_s or 0.0) > _MAX_PAUSE_S:
            break
        yield WaitStep(backoff.next_pause(wanted_s))
        reply = yield from send(step)
    return reply, reply.parse_object() if reply.is_success else {}


def post_form(url: str, fields: Mapping[str, str], headers: Mapping[str, str]) -> Steps[HttpReply]:
    """Send a form (RFC 6749 appendix B)."""
    base = {"accept": "application/json", "content-type": FORM}
    step = HttpStep(url=url, method="POST", headers={**base, **headers}, body=urlencode(fields).encode())
    return (yield from send(step))


def post_json(url: str, document: JsonLike) -> Steps[HttpReply]:
    """Send a JSON document."""
    headers = {"accept": "application/json", "content-type": "application/json"}
    return (yield from send(HttpStep(url=url, method="POST", headers=headers, body=json.dumps(document).encode())))


def open_redirect(registered: Sequence[str]) -> Steps[str]:
    """Prepare to receive a redirect, and return its URI."""
    reply = yield RedirectStep(registered)
    return str(reply)


def authorize(url: str) -> Steps[Mapping[str, str]]:
    """Show the user an authorization URL, and return the parameters of the redirect."""
    reply = yield AuthorizeStep(url)
    return reply if isinstance(reply, Mapping) else {}


def load_credentials(key: CredentialKey) -> Steps[StoredCredentials | None]:
    """Load a sign-in by key."""
    reply = yield LoadStep(key)
    return reply if isinstance(reply, StoredCredentials) else None


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
