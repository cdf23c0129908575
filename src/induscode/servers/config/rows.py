"""Server rows: one server in a configuration file, and the configuration it resolves to."""

from __future__ import annotations

import math
import os
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from indusagi.core.json import compact_json, is_json_object
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.contract import (
    ServerLimits,
    SseServerConfig,
    StdioServerConfig,
    StreamableHttpServerConfig,
)
from induscode.servers.config.auth_fields import build_auth_settings, normalize_auth
from induscode.servers.config.expansion import ExpansionContext, expand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from induscode.servers.config.expansion import Expansion

Scope: TypeAlias = Literal["project", "user", "given"]
"""The owner of a file: the project, the user, or the command line (`given`)."""
Start: TypeAlias = Literal["eager", "lazy"]
Added: TypeAlias = Literal["hold", "allow"]
"""Whether items a known server adds later wait for approval or are approved."""


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

        Raises:
            UnresolvedVariableError: A variable has no value.
        """
        context, config = self.make_context(environ), self.config

        def value(text: str) -> str:
            return expand(text, self.expansion, context)

        def values(texts: Mapping[str, str]) -> dict[str, str]:
            return {name: value(text) for name, text in texts.items()}

        if isinstance(config, StdioServerConfig):
            passed = {name: context.variable(name) for name in self.secrets}
            return replace(
                config,
                command=value(config.command),
                args=tuple(map(value, config.args)),
                env={**passed, **values(config.env)},
                cwd=None if config.cwd is None else value(config.cwd),
            )
        proxy = None if config.proxy is None else value(config.proxy)
        resolved = replace(config, url=value(config.url), headers=values(config.headers), proxy=proxy)
        if self.auth == {}:
            return resolved
        from indusagi.interop.auth.contract import ServerAuth  # noqa: PLC0415 — only for servers behind a URL
        from indusagi.interop.auth.storage import CredentialFiles  # noqa: PLC0415

        settings = build_auth_settings(self.auth or {}, value)
        return replace(resolved, auth=ServerAuth(settings=settings, store=CredentialFiles()))


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


def is_switched_off(row: JsonObject) -> bool:
    """Tell whether a row is switched off (`enabled: false`, `disabled: true`)."""
    return row.get("enabled") is False or row.get("disabled") is True


def parse_row(
    identity: str, row: JsonObject, origin: Origin, *, expansion: Expansion = "none", written: JsonObject | None = None
) -> ServerRow:
    """Parse a server from normalized fields. `written` holds the original ones, if its dialect differs.

    Raises:
        InvalidRowError: The row has no name, or neither a command nor a URL.
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
        secrets=tuple(reader.strings("env_vars") or ()),
        auth=auth,
        registry=entry if is_json_object(entry) else None,
        remarks=tuple(reader.remarks),
        written={key: _make_json(value) for key, value in (row if written is None else written).items()},
    )


def _make_json(value: object, depth: int = 0) -> JsonValue:
    """Convert values JSON lacks (dates and NaN, from TOML and lenient JSON) to strings.

    Raises:
        InvalidRowError: It's nested too deeply.
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
        kind = self._kind()
        limits = self._limits()
        include, exclude = self.strings("include_tools"), self.strings("exclude_tools") or ()
        if url is not None and kind != "stdio":
            make = SseServerConfig if kind == "sse" else StreamableHttpServerConfig
            return make(
                identity,
                url,
                self._texts("headers"),
                proxy=self._proxy(),
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
        )

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

    def _kind(self) -> str | None:
        kind = self.row.get("type", self.row.get("transport"))
        if kind is None:
            return None
        known = TYPES.get(kind) if isinstance(kind, str) else None
        if known is None:
            self.remarks.append(f"its type {compact_json(kind)} is unknown, and was not considered")
        return known

    def _text(self, name: str) -> str | None:
        value = self.row.get(name)
        if value is None or value == "":
            return None
        if isinstance(value, str):
            return value
        self.remarks.append(f"its {name} is not text, and was left out")
        return None

    def _proxy(self) -> str | None:
        # An empty string means no proxy; a missing one leaves it to the environment.
        return "" if self.row.get("proxy") == "" else self._text("proxy")

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
        known = {field.name for field in fields(ServerLimits)}
        for key, name in _SECONDS.items():
            seconds = self._seconds(key, 1.0)
            if seconds is not None and name in known:
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
        value = self.row.get("added")
        if value not in (None, "hold", "allow"):
            self.remarks.append("its added is neither hold nor allow, so additions are held")
        return "allow" if value == "allow" else "hold"

    def start(self) -> Start | None:
        """Read when to start the server."""
        value = self.row.get("start")
        if value is None and self.row.get("lazy") is True:
            return "lazy"
        if isinstance(value, str) and value in {"eager", "lazy"}:
            return "lazy" if value == "lazy" else "eager"
        if value is not None:
            self.remarks.append("its start is neither eager nor lazy, and was not considered")
        return None
