"""Server rows: one server in a configuration file, and the configuration it resolves to.

The `auth` object of a row says how to sign in to the server. Other programs spell parts of it differently: `oauth` with
`clientId` (Claude Code, Gemini, opencode), `auth` with `CLIENT_ID` (Cursor), `headersHelper` (Claude Code). We convert
them all to the fields of `AuthSettings`, with variables as written, since users consent to their names.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, cast

from indusagi.capabilities.sandbox.profile import InvalidProfileError, ServerProfile, parse_profile
from indusagi.core.app_dirs import is_within
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import SecretText, find_literal_host, find_references
from indusagi.interop.protocol_bridge.contract import (
    ServerConfig,
    ServerLimits,
    SseServerConfig,
    StdioServerConfig,
    StreamableHttpServerConfig,
)
from induscode.servers.config.dialects import ExpansionContext, UnresolvedVariableError, expand
from induscode.servers.labels import InvalidLabelsError, Label, RowLabels, parse_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from indusagi.interop.auth.contract import AuthSettings
    from induscode.servers.config.dialects import Expansion


_TEXTS: Final = frozenset(
    (
        *("client_id", "client_secret", "private_key", "signing_algorithm", "client_metadata_url", "redirect_uri"),
        *("issuer", "metadata_url", "assertion", "assertion_file"),
    )
)
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "grant": ("authorization_code", "device_code", "client_credentials", "jwt_bearer", "id_jag", "token_exchange"),
    "auth_method": ("none", "client_secret_basic", "client_secret_post", "private_key_jwt"),
}
_FLAGS: Final = frozenset({"dpop", "assume_pkce", "per_user"})
_LISTS: Final = frozenset({"scopes", "header_command"})
SECRET_FIELDS: Final = frozenset({"client_secret", "private_key", "assertion", "id_token"})
"""Texts that may be references to secrets."""
_PROVIDER: Final = ("token_endpoint", "client_id", "client_secret", "id_token")
_OTHER_NAMES: Final = {"auth_server_metadata_url": "metadata_url", "scope": "scopes"}
_IGNORED: Final = frozenset({"type", "enabled"})
_LAST_PORT: Final = 65_535
T = TypeVar("T")


def normalize_auth(row: JsonObject, remarks: list[str]) -> JsonObject | None:
    """Return a row's sign-in fields, skipping invalid ones with a remark.

    `None`: the row doesn't say; an empty object: it doesn't want a sign-in.
    """
    given = row.get("auth", row.get("oauth"))
    helper = row.get("headersHelper", row.get("headers_helper"))
    if given is False or (is_json_object(given) and (given.get("type") == "none" or given.get("enabled") is False)):
        return {}
    fields: JsonObject = {}
    if given is not None and not is_json_object(given):
        remarks.append("its auth is not an object, and was left out")
    elif given is not None:
        if given.get("type") in ("token-exchange", "token_exchange"):
            fields["grant"] = "token_exchange"
        for key, value in given.items():
            # `clientId` and `CLIENT_ID` are `client_id`.
            name = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", key).lower()
            name = _OTHER_NAMES.get(name, name)
            if name not in _IGNORED and value is not None and not _take_auth_field(fields, name, value):
                remarks.append(f"{key} of its auth is unknown or invalid, and was left out")
    if helper is not None and not _take_auth_field(fields, "header_command", helper):
        remarks.append("its headersHelper is not text, and was left out")
    port = fields.get("callback_port")
    if "oauth" in row and port is not None and "redirect_uri" not in fields:
        # The redirect Claude Code users have registered for their client.
        fields["redirect_uri"] = f"http://localhost:{port}/callback"
    return fields or None


def _take_auth_field(fields: JsonObject, name: str, value: JsonValue) -> bool:
    """Add a field if it's valid, and tell whether it was."""
    taken: JsonValue = None
    if name in _LISTS:
        taken = _parse_list(name, value)
    elif name == "callback_port":
        taken = value if isinstance(value, int) and 0 < value <= _LAST_PORT else None
    elif name in _FLAGS:
        taken = value if isinstance(value, bool) else None
    elif name == "identity_provider" and is_json_object(value):
        is_complete = all(isinstance(value.get(key), str) for key in _PROVIDER if key != "client_secret")
        taken = {key: text for key in _PROVIDER if isinstance(text := value.get(key), str)} if is_complete else None
    elif isinstance(value, str) and (name in _TEXTS or value in _CHOICES.get(name, ())):
        taken = value
    if taken is not None:
        fields[name] = taken
    return taken is not None


def _parse_list(name: str, value: JsonValue) -> JsonValue:
    if isinstance(value, str) and value.strip():
        # Claude Code runs its helper in a shell; OAuth scopes are a single string (RFC 6749 §3.3).
        return ["sh", "-c", value] if name == "header_command" else [*value.split()]
    if isinstance(value, list) and value and all(isinstance(member, str) for member in value):
        return value
    return None


def iter_auth_texts(auth: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield every string in the object with its place."""
    for name, value in auth.items():
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, list):
            yield from ((name, str(member)) for member in value)
        elif is_json_object(value):
            yield from ((f"{name}.{key}", str(member)) for key, member in value.items())


def format_auth(name: str, value: JsonValue) -> str | None:
    """Format a field for a consent prompt, or return `None` if its value is a secret."""
    if name in {"client_secret", "private_key", "assertion", "identity_provider"}:
        return None
    return value if isinstance(value, str) else compact_json(value)


def build_auth_settings(
    auth: JsonObject, expand: Callable[[str], str], expand_plain: Callable[[str], str]
) -> AuthSettings:
    """Build the sign-in settings, with variables expanded. Only secrets may be references, which `expand` keeps."""
    from indusagi.interop.auth.contract import AuthSettings, IdentityProvider  # noqa: PLC0415 — for such rows alone

    def expand_texts(fields: JsonObject) -> dict[str, str]:
        texts = ((name, value) for name, value in fields.items() if isinstance(value, str))
        return {name: (expand if name in SECRET_FIELDS else expand_plain)(value) for name, value in texts}

    values: dict[str, Any] = {name: value for name, value in auth.items() if not isinstance(value, str)}
    values |= {name: text for name, text in expand_texts(auth).items() if text}
    for name in _LISTS & auth.keys():
        values[name] = tuple(expand_plain(str(member)) for member in cast("list[JsonValue]", auth[name]))
    given = auth.get("identity_provider")
    if is_json_object(given):
        values["identity_provider"] = IdentityProvider(**expand_texts(given))
    return AuthSettings(**values)


# -- rows -------------------------------------------------------------------------------------


Scope: TypeAlias = Literal["project", "user", "given"]
"""The owner of a file: the project, the user, or the command line (`given`)."""
Start: TypeAlias = Literal["eager", "lazy"]
Added: TypeAlias = Literal["hold", "allow"]
"""Whether items a known server adds later wait for approval or are approved."""

ReviewMode: TypeAlias = Literal["off", "note", "hold"]
"""Whether serious findings hold a new definition, are shown, or nothing is reviewed; the strictest last."""
REVIEW_MODES: Final[tuple[ReviewMode, ...]] = ("off", "note", "hold")


class InvalidRowError(Exception):
    """A row without a usable server."""


@record
class Origin:
    """The location of a row."""

    file: str
    scope: Scope
    dialect: str

    def __str__(self) -> str:
        # For a file from the command line, the dialect is only a guess from its keys.
        return self.file if self.scope == "given" or self.dialect == "indus" else f"{self.file} ({self.dialect})"


@record
class ServerRow:
    """A server in a file, before expanding variables. Users consent to variable names, not values."""

    config: ServerConfig
    origin: Origin
    expansion: Expansion = "none"
    required: bool = False
    start: Start | None = None
    """When to start it. `None`: the session's default."""
    added: Added = "hold"
    labels: RowLabels = field(default_factory=dict[str, "tuple[Label, ...]"])
    """What its tools read and send, by tool, as the user says."""
    review: ReviewMode | None = None
    """What the review does with its new definitions. `None`: as the setting says."""
    secrets: tuple[str, ...] = ()
    """Names of environment variables to pass to the server."""
    auth: JsonObject | None = None
    """How to sign in. `None`: as the server asks; an empty object: not at all."""
    registry: JsonObject | None = field(default=None, compare=False)
    """The MCP registry entry behind the row: name, version, package, hash."""
    remarks: tuple[str, ...] = field(default=(), compare=False)
    """Ignored fields, with the reason."""
    written: JsonObject = field(default_factory=dict[str, "JsonValue"], compare=False)
    """The row as written in its file, in its dialect."""
    contents: dict[str, str] = field(default_factory=dict[str, str], compare=False, repr=False)
    """Contents of files the row refers to, once read."""

    @property
    def id(self) -> str:
        """The id of the server."""
        return self.config.id

    def make_context(self, environ: Mapping[str, str]) -> ExpansionContext:
        """Build the lookup context for the row's variables and files."""
        return ExpansionContext(environ, find_project_dir(self.origin), self.contents)

    def resolve(self, environ: Mapping[str, str]) -> ServerConfig:
        """Return the configuration with variables expanded, and the user's sign-ins for a server behind a URL.

        References to secrets stay as written, until a start reads them. Raises `UnresolvedVariableError` if a variable
        has no value, or a reference is where none may be.
        """
        context, config = self.make_context(environ), self.config

        def value(text: str) -> str:
            return expand(text, self.expansion, context)

        def values(texts: Mapping[str, str]) -> dict[str, str]:
            return {name: value(text) for name, text in texts.items()}

        def plain(text: str) -> str:
            return _check_plain(value(text))

        if isinstance(config, StdioServerConfig):
            passed = {name: context.variable(name) for name in self.secrets}
            sandbox = config.sandbox
            if sandbox is not None:
                sandbox = replace(sandbox, owner=os.path.realpath(self.origin.file))
            return replace(
                config,
                command=plain(config.command),
                args=tuple(self._check_argument(value(arg), context.folder) for arg in config.args),
                env={**passed, **values(config.env)},
                cwd=None if config.cwd is None else plain(config.cwd),
                sandbox=sandbox,
            )
        proxy = None if config.proxy is None else value(config.proxy)
        resolved = replace(config, url=value(config.url), headers=values(config.headers), proxy=proxy)
        has_secret_url = isinstance(resolved.url, SecretText)
        if has_secret_url and find_literal_host(resolved.url) is None:
            _check_plain(resolved.url)
        if self.auth == {} or has_secret_url:  # a secret in the address is its sign-in
            return resolved
        from indusagi.interop.auth.contract import ServerAuth  # noqa: PLC0415 — only for servers behind a URL
        from indusagi.interop.auth.storage import CredentialFiles  # noqa: PLC0415

        settings = build_auth_settings(self.auth or {}, value, plain)
        return replace(resolved, auth=ServerAuth(settings=settings, store=CredentialFiles()))

    def _check_argument(self, text: str, folder: str) -> str:
        """Refuse a file of the project: an argument may be code, and consent doesn't cover the file's content."""
        for reference in find_references(text):
            path = os.path.realpath(os.path.join(folder, os.path.expanduser(reference.name)))
            if reference.kind == "file" and self.origin.scope != "user" and is_within(path, os.path.realpath(folder)):
                raise UnresolvedVariableError(f"an argument can't be a file of the project: {reference.written}")
        return text


def _check_plain(text: str) -> str:
    if isinstance(text, SecretText):
        raise UnresolvedVariableError(f"a reference to a secret can't choose the program or the host: {text}")
    return text


def find_project_dir(origin: Origin) -> str:
    """Return the directory a file configures: the parent of a settings directory such as `.vscode`."""
    folder = os.path.dirname(os.path.abspath(origin.file))
    inside_settings = os.path.basename(folder).startswith(".") and origin.scope != "user"
    return os.path.dirname(folder) if inside_settings else folder


# -- parsing ----------------------------------------------------------------------------------

_SECONDS = {"startup_timeout_sec": "connect_s", "tool_timeout_sec": "call_idle_s"}
_MAX_REPLICAS = 32
_MAX_DEPTH = 50
TYPES: dict[str, str] = {
    "http": "streamable_http",
    "streamable-http": "streamable_http",
    "streamable_http": "streamable_http",
    "streamableHttp": "streamable_http",
    "sse": "sse",
    "remote": "streamable_http",
    "stdio": "stdio",
    "local": "stdio",
}
_CAMEL = {
    "startupTimeoutSec": "startup_timeout_sec",
    "toolTimeoutSec": "tool_timeout_sec",
    "descriptionLimit": "description_limit",
    "includeTools": "include_tools",
    "excludeTools": "exclude_tools",
    "enabledTools": "include_tools",
    "disabledTools": "exclude_tools",
    "enabled_tools": "include_tools",
    "disabled_tools": "exclude_tools",
    "environment": "env",
    "http_headers": "headers",
}


SWITCHES = frozenset({"enabled", "disabled"})
"""Fields that switch a row on or off."""
VALUE_FIELDS: Final = ("env", "environment", "headers", "http_headers")
"""Fields with variables or headers, in any client's spelling; their values may be secrets."""


def is_switched_off(row: JsonObject) -> bool:
    """Tell whether a row is switched off (`enabled: false`, `disabled: true`)."""
    return row.get("enabled") is False or row.get("disabled") is True


def parse_row(
    identity: str, row: JsonObject, origin: Origin, *, expansion: Expansion = "none", written: JsonObject | None = None
) -> ServerRow:
    """Parse a server from normalized fields. `written` holds the original ones, if its dialect differs.

    Raises `InvalidRowError` if the row has no name, or neither a command nor a URL.
    """
    if not identity:
        raise InvalidRowError("it has no name")
    reader = _RowParser({_CAMEL.get(key, key): _make_json(value) for key, value in row.items()})
    config = reader.config(identity)
    auth = None if isinstance(config, StdioServerConfig) else normalize_auth(reader.row, reader.remarks)
    entry = reader.row.get("registry")
    return ServerRow(
        config,
        origin,
        expansion,
        required=reader.row.get("required") is True,
        start=reader.start(),
        added=reader.added(),
        labels=reader.labels() if "labels" in reader.row else {},
        review=reader.review(),
        secrets=tuple(reader.strings("env_vars") or ()),
        auth=auth,
        registry=entry if is_json_object(entry) else None,
        remarks=tuple(reader.remarks),
        written={key: _make_json(value) for key, value in (row if written is None else written).items()},
    )


def _make_json(value: object, depth: int = 0) -> JsonValue:
    """Convert values JSON lacks (dates and NaN, from TOML and lenient JSON) to strings.

    Raises `InvalidRowError` if it's nested too deeply.
    """
    if depth > _MAX_DEPTH:
        raise InvalidRowError("it is nested too deeply")
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return {str(key): _make_json(member, depth + 1) for key, member in items}
    if isinstance(value, list):
        return [_make_json(member, depth + 1) for member in cast("list[object]", value)]
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


class _RowParser:
    """Reads fields of any type and collects remarks about invalid ones."""

    def __init__(self, row: JsonObject) -> None:
        self.row = row
        self.remarks: list[str] = []

    def config(self, identity: str) -> ServerConfig:
        url, command = self._text("url"), self._text("command")
        kind = self.row.get("type", self.row.get("transport"))
        kind = self._choose(kind, TYPES, f"its type {compact_json(kind)} is unknown, and was not considered")
        limits = self._limits()
        include, exclude = self.strings("include_tools"), self.strings("exclude_tools") or ()
        if url is not None and kind != "stdio":
            make = SseServerConfig if kind == "sse" else StreamableHttpServerConfig
            return make(
                identity,
                url,
                self._texts("headers"),
                # An empty string means no proxy; a missing one leaves it to the environment.
                proxy="" if self.row.get("proxy") == "" else self._text("proxy"),
                limits=limits,
                include_tools=include,
                exclude_tools=exclude,
            )
        if command is None:
            unusable = [key for key in ("command", "url") if not isinstance(self.row.get(key, ""), str | None)]
            raise InvalidRowError(
                f"its {unusable[0]} is not text" if unusable else "it has neither a command nor a url"
            )
        return StdioServerConfig(
            identity,
            command,
            self.strings("args") or (),
            self._texts("env"),
            cwd=self._text("cwd"),
            limits=limits,
            include_tools=include,
            exclude_tools=exclude,
            replicas=self._replicas(),
            sandbox=self._sandbox(),
        )

    def _sandbox(self) -> ServerProfile | None:
        try:
            return parse_profile(self.row.get("sandbox"))
        except InvalidProfileError as exc:
            raise InvalidRowError(str(exc)) from None  # ignoring it would start the server with all your rights

    def _replicas(self) -> int:
        """Read how many cluster nodes may run the server: one unless it's declared stateless."""
        value, stateless = self.row.get("replicas"), self.row.get("stateless")
        if stateless not in (None, True, False):
            self.remarks.append("its stateless is neither true nor false, and was not considered")
        if value is None:
            return 1
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_REPLICAS:
            self.remarks.append(f"its replicas are not a whole number from 1 to {_MAX_REPLICAS}, and were left out")
            return 1
        if value > 1 and stateless is not True:
            self.remarks.append('its replicas were left out: only a server with "stateless": true has several')
            return 1
        return value

    def _choose(self, value: JsonValue, known: Mapping[str, T], remark: str) -> T | None:
        """Return the choice that a value stands for, or `None` with a remark."""
        chosen = known.get(value) if isinstance(value, str) else None
        if chosen is None and value is not None:
            self.remarks.append(remark)
        return chosen

    def _text(self, name: str) -> str | None:
        value = self.row.get(name)
        if value is None or value == "":
            return None
        if isinstance(value, str):
            return value
        self.remarks.append(f"its {name} is not text, and was left out")
        return None

    def strings(self, name: str) -> tuple[str, ...] | None:
        """Read a list of strings, dropping other members with a remark."""
        value = self.row.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            self.remarks.append(f"its {name} are not a list, and were left out")
            return None
        texts = tuple(member for member in value if isinstance(member, str))
        if len(texts) < len(value):
            self.remarks.append(f"{len(value) - len(texts)} of its {name} are not text, left out")
        return texts

    def _texts(self, name: str) -> dict[str, str]:
        """Read variables or headers, encoding numbers and booleans as JSON."""
        value = self.row.get(name)
        if value is None:
            return {}
        if not is_json_object(value):
            self.remarks.append(f"its {name} are not an object, and were left out")
            return {}
        texts: dict[str, str] = {}
        for key, member in value.items():
            if isinstance(member, str):
                texts[key] = member
            elif isinstance(member, (bool, int, float)):
                texts[key] = compact_json(member)
            else:
                self.remarks.append(f"{key} of its {name} is not text, and was left out")
        return texts

    def _limits(self) -> ServerLimits:
        limits = ServerLimits()
        for key, name in _SECONDS.items():
            seconds = self._seconds(key, 1.0)
            if seconds is not None:
                limits = replace(limits, **{name: seconds})
        cut = self.row.get("description_limit")
        if isinstance(cut, int) and not isinstance(cut, bool) and cut >= 0:
            limits = replace(limits, description_chars=cut)
        elif cut is not None:
            self.remarks.append("its description_limit is not a whole number from 0, and was left out")
        whole = self._seconds("timeout", 0.001)
        return limits if whole is None else replace(limits, call_idle_s=whole)

    def _seconds(self, key: str, unit: float) -> float | None:
        value = self.row.get(key)
        if value is None:
            return None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            return float(value) * unit
        self.remarks.append(f"its {key} is not a positive number, and was left out")
        return None

    def added(self) -> Added:
        """Read whether items the server adds later wait for approval."""
        choices = dict[str, Added](hold="hold", allow="allow")
        remark = "its added is neither hold nor allow, so additions are held"
        return self._choose(self.row.get("added"), choices, remark) or "hold"

    def labels(self) -> RowLabels:
        """Read the labels of its tools. Invalid ones are proposed instead."""
        try:
            return parse_labels(self.row.get("labels"))
        except InvalidLabelsError as exc:
            self.remarks.append(f"its labels were left out: it {exc}")
            return {}

    def review(self) -> ReviewMode | None:
        """Read what the review does with the server's new definitions."""
        remark = "its review is neither hold, note nor off, and was not considered"
        choices = dict[str, ReviewMode](hold="hold", note="note", off="off")
        return self._choose(self.row.get("review"), choices, remark)

    def start(self) -> Start | None:
        """Read when to start the server."""
        value, choices = self.row.get("start"), dict[str, Start](eager="eager", lazy="lazy")
        if value is None and self.row.get("lazy") is True:
            return "lazy"
        return self._choose(value, choices, "its start is neither eager nor lazy, and was not considered")
