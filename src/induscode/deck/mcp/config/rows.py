"""A server as a file names it, and the configuration it becomes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.json import compact_json, is_json_object
from indusagi.interop.protocol_bridge.contract import (
    ServerLimits,
    SseServerConfig,
    StdioServerConfig,
    StreamableHttpServerConfig,
)
from induscode.deck.mcp.config.expansion import ExpansionContext, expand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from induscode.deck.mcp.config.expansion import Expansion

Scope: TypeAlias = Literal["project", "user", "given"]
"""Whose file it is: the project's, the user's, or one the user has named for this run."""
Start: TypeAlias = Literal["eager", "lazy"]


class InvalidRowError(Exception):
    """A row that names no server."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a row stands."""

    file: str
    scope: Scope
    dialect: str

    def __str__(self) -> str:
        return f"{self.file} ({self.dialect})"


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A server of a file. Its variables are still names: consent is given to those."""

    config: ServerConfig
    origin: Origin
    expansion: Expansion = "none"
    required: bool = False
    start: Start | None = None
    """When to start it; None: as the session thinks best."""
    secrets: tuple[str, ...] = ()
    """Names of our own variables that the row wants to have handed on."""
    remarks: tuple[str, ...] = field(default=(), compare=False)
    """What was left out of the row."""

    @property
    def id(self) -> str:
        """The id of the server."""
        return self.config.id

    def resolve(self, environ: Mapping[str, str]) -> ServerConfig:
        """Give the configuration with the values of its variables.

        Raises:
            UnresolvedVariableError: One has none.
        """
        here = ExpansionContext(environ, find_project_dir(self.origin))
        config = self.config

        def value(text: str) -> str:
            return expand(text, self.expansion, here)

        def values(texts: Mapping[str, str]) -> dict[str, str]:
            return {name: value(text) for name, text in texts.items()}

        if isinstance(config, StdioServerConfig):
            handed = {name: here.variable(name) for name in self.secrets}
            return replace(
                config,
                command=value(config.command),
                args=tuple(value(one) for one in config.args),
                env={**handed, **values(config.env)},
                cwd=None if config.cwd is None else value(config.cwd),
            )
        proxy = None if config.proxy is None else value(config.proxy)
        return replace(config, url=value(config.url), headers=values(config.headers), proxy=proxy)


def find_project_dir(origin: Origin) -> str:
    """Give the folder a file matches about: the one above a folder of settings."""
    folder = os.path.dirname(os.path.abspath(origin.file))
    name = os.path.basename(folder)
    inside_settings = name.startswith(".") and origin.scope != "user"
    return os.path.dirname(folder) if inside_settings else folder


# -- from the fields of a row -----------------------------------------------------------------

_SECONDS = {"startup_timeout_sec": "connect_s", "tool_timeout_sec": "call_idle_s"}
_TYPES: dict[str, str] = {
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
    "read_disabled_tools": "exclude_tools",
    "environment": "env",
    "http_headers": "headers",
}


def is_switched_off(row: JsonObject) -> bool:
    """Tell whether a row says that it is not to be used."""
    return row.get("enabled") is False or row.get("disabled") is True


def parse_row(identity: str, row: JsonObject, origin: Origin, *, expansion: Expansion = "none") -> ServerRow:
    """Make a server of the fields that every dialect comes down to.

    Raises:
        InvalidRowError: It names no server.
    """
    if not identity:
        raise InvalidRowError("it has no name")
    reader = _Reader({_CAMEL.get(key, key): value for key, value in row.items()})
    config = reader.config(identity)
    return ServerRow(
        config,
        origin,
        expansion,
        required=reader.row.get("required") is True,
        start=reader.start(),
        secrets=tuple(reader.strings("env_vars") or ()),
        remarks=tuple(reader.remarks),
    )


class _Reader:
    """Reads fields that may be anything, and remembers what was wrong with them."""

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
            raise InvalidRowError("it has neither a command nor a url")
        return StdioServerConfig(
            identity,
            command,
            self.strings("args") or (),
            self._texts("env"),
            cwd=self._text("cwd"),
            limits=limits,
            include_tools=include,
            exclude_tools=exclude,
        )

    def _kind(self) -> str | None:
        kind = self.row.get("type", self.row.get("transport"))
        if kind is None:
            return None
        known = _TYPES.get(kind) if isinstance(kind, str) else None
        if known is None:
            self.remarks.append(f"its type {compact_json(kind)} is unknown, and was not considered")
        return known

    def _text(self, name: str) -> str | None:
        value = self.row.get(name)
        if value is None or value == "":
            return None
        if isinstance(value, str):
            return value
        self.remarks.append(f"its {name} is no text, and was left out")
        return None

    def _proxy(self) -> str | None:
        # An empty text is not the same as none: it means that there is to be no proxy.
        return "" if self.row.get("proxy") == "" else self._text("proxy")

    def strings(self, name: str) -> tuple[str, ...] | None:
        """Read a list of texts; what is none is left out, and remarked on."""
        value = self.row.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            self.remarks.append(f"its {name} are no list, and were left out")
            return None
        kept = tuple(one for one in value if isinstance(one, str))
        if len(kept) < len(value):
            self.remarks.append(f"{len(value) - len(kept)} of its {name} are no text, left out")
        return kept

    def _texts(self, name: str) -> dict[str, str]:
        value = self.row.get(name)
        if value is None:
            return {}
        if not is_json_object(value):
            self.remarks.append(f"its {name} are no object, and were left out")
            return {}
        texts: dict[str, str] = {}
        for key, one in value.items():
            text = _as_text(one)
            if text is None:
                self.remarks.append(f"{key} of its {name} is no text, and was left out")
            else:
                texts[key] = text
        return texts

    def _limits(self) -> ServerLimits:
        limits = ServerLimits()
        known = {one.name for one in fields(ServerLimits)}
        for key, name in _SECONDS.items():
            seconds = self._seconds(key, 1.0)
            if seconds is not None and name in known:
                limits = replace(limits, **{name: seconds})
        cut = self.row.get("description_limit")
        if isinstance(cut, int) and not isinstance(cut, bool) and cut >= 0:
            limits = replace(limits, description_chars=cut)
        elif cut is not None:
            self.remarks.append("its description_limit is no whole number from 0, and was left out")
        whole = self._seconds("timeout", 0.001)
        return limits if whole is None else replace(limits, call_idle_s=whole)

    def _seconds(self, key: str, unit: float) -> float | None:
        value = self.row.get(key)
        if value is None:
            return None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            return float(value) * unit
        self.remarks.append(f"its {key} is no positive number, and was left out")
        return None

    def start(self) -> Start | None:
        """Read when the server is to be started."""
        value = self.row.get("start")
        if value is None and self.row.get("lazy") is True:
            return "lazy"
        if isinstance(value, str) and value in {"eager", "lazy"}:
            return "lazy" if value == "lazy" else "eager"
        if value is not None:
            self.remarks.append("its start is neither eager nor lazy, and was not considered")
        return None


def _as_text(value: JsonValue) -> str | None:
    """Give a value of a variable or a header: a number and a truth value become their JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        return compact_json(value)
    return None
