"""Connector credentials: references to environment variables, read when sending a request.

The store holds names of variables, never values. In anything shown to a model or the user, each value is replaced by
its variable's name, in every spelling a service could send back.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast
from urllib.parse import quote, quote_plus

from indusagi.core.records import record
from indusagi.core.text import clean_json
from induscode.connectors.openapi import ConnectorFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from indusagi.core.json import JsonValue

AuthKind: TypeAlias = Literal["bearer", "header", "query", "basic"]
AUTH_FORMS: Final = (
    "bearer:VARIABLE, header:NAME:VARIABLE, query:NAME:VARIABLE or basic:USER_VARIABLE:PASSWORD_VARIABLE"
)
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,99}")
_NAME = re.compile(r"[A-Za-z0-9_.~-]{1,100}")
_PARTS: Final = {"bearer": 1, "header": 2, "query": 2, "basic": 2}
_MIN_SECRET_CHARS: Final = 4
"""Shorter values would also replace ordinary text."""


@record
class AuthReference:
    """How a connector authenticates."""

    kind: AuthKind
    variables: tuple[str, ...]
    name: str = ""
    """Name of the header or query parameter."""

    def __str__(self) -> str:
        return ":".join([self.kind, *([self.name] if self.name else []), *self.variables])

    @property
    def sends(self) -> frozenset[tuple[str, str]]:
        """The parameter it fills, as place and lower-case name."""
        if self.kind in {"header", "query"}:
            return frozenset({(str(self.kind), self.name.lower())})
        return frozenset({("header", "authorization")})

    def find_missing(self, environ: Mapping[str, str]) -> list[str]:
        """List the variables without a value."""
        return find_unset(self.variables, environ)

    def read_credentials(self, environ: Mapping[str, str]) -> Credentials:
        """Read the values of the variables.

        Raises:
            ConnectorFault: A variable isn't set, or its value can't be sent.
        """
        check_values(self.variables, environ)
        values = [environ[name] for name in self.variables]
        for name, value in zip(self.variables, values, strict=True):
            if not value.isascii() or not value.isprintable():
                raise ConnectorFault(f"the variable {name} holds characters that cannot be sent: set it again")
        secrets = dict(zip(values, self.variables, strict=True))
        if self.kind == "bearer":
            return Credentials({"Authorization": f"Bearer {values[0]}"}, None, secrets)
        if self.kind == "header":
            return Credentials({self.name: values[0]}, None, secrets)
        if self.kind == "query":
            return Credentials({}, (self.name, values[0]), secrets)
        pair = b64encode(":".join(values).encode("ascii")).decode("ascii")
        secrets = {pair: "+".join(self.variables), values[1]: self.variables[1]}
        return Credentials({"Authorization": f"Basic {pair}"}, None, secrets)


@record
class Credentials:
    """Values for one request, hidden from `repr`."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    query: tuple[str, str] | None = field(default=None, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Maps each value to its replacement: its variable's name."""

    def hide(self, value: JsonValue) -> JsonValue:
        """Replace every variable's value, in texts and keys."""
        forms: dict[str, str] = {}
        for secret, name in self.secrets.items():
            if len(secret) >= _MIN_SECRET_CHARS:
                forms |= dict.fromkeys((secret, quote(secret, safe=""), quote_plus(secret)), f"[{name}]")
        if not forms:
            return value
        ordered = sorted(forms, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, ordered)))
        return clean_json(value, lambda text: pattern.subn(lambda match: forms[match[0]], text))[0]

    def hide_text(self, text: str) -> str:
        """Replace every variable's value in a text."""
        return cast("str", self.hide(text))


def find_unset(variables: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """List the variables without a value."""
    return [name for name in variables if not environ.get(name)]


def check_values(variables: Iterable[str], environ: Mapping[str, str]) -> None:
    """Check that variables have values, or raise `ConnectorFault`."""
    missing = find_unset(variables, environ)
    if missing:
        raise ConnectorFault(f"the variable {missing[0]} is not set in this run: set it and start again")


def check_variable(name: str, option: str) -> None:
    """Check the name of a variable that holds a secret. An error never repeats it, since it may be the secret.

    Raises:
        ConnectorFault: It isn't a variable name.
    """
    if not _VARIABLE.fullmatch(name):
        problem = "takes the name of an environment variable, in capital letters; the secret itself is never given"
        raise ConnectorFault(f"{option} {problem}")


def parse_auth(text: str) -> AuthReference:
    """Parse how a connector authenticates. An error never repeats the text, which may be a secret.

    Raises:
        ConnectorFault: The form is wrong, or it names no variable.
    """
    kind, *parts = text.split(":")
    if _PARTS.get(kind) != len(parts):
        raise ConnectorFault(f"--auth has the form {AUTH_FORMS}")
    kind = cast("AuthKind", kind)
    name = parts.pop(0) if kind in {"header", "query"} else ""
    if name and not _NAME.fullmatch(name):
        raise ConnectorFault(f"--auth names no {kind} parameter: the form is {AUTH_FORMS}")
    for part in parts:
        check_variable(part, "--auth")
    return AuthReference(kind, tuple(parts), name)
