"""Challenges of a resource server: the `WWW-Authenticate` header (RFC 9110 §11.6.1), parsed and selected.

A response may have several headers, a header several challenges, and a challenge parameters or a single token. Text
that does not fit the grammar ends the parsing; what was read before it counts.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING

from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_SCHEME = re.compile(rf"[\s,]*({_TOKEN})(?:[ \t]+|(?=,)|$)")
_PARAMETER = re.compile(rf'[\s,]*({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))[ \t]*(?=,|$)', re.DOTALL)
_TOKEN68 = re.compile(r"[A-Za-z0-9._~+/-]+=*[ \t]*(?=,|$)")
_LONGEST = 16 * 1024


@record
class Challenge:
    """One challenge: its scheme, and its parameters by name in lower case."""

    scheme: str
    """In lower case."""
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that the request needs (RFC 6750 §3)."""
        return tuple(self.parameters.get("scope", "").split())

    @property
    def error(self) -> str:
        """The error code, or empty."""
        return self.parameters.get("error", "")


def parse_challenges(headers: Iterable[str]) -> list[Challenge]:
    """Parse the values of all `WWW-Authenticate` headers of a response."""
    challenges: list[Challenge] = []
    for header in headers:
        text, position = header[:_LONGEST], 0
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
