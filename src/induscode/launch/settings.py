"""User and project settings: one typed table, two files, and the origin of each value.

To add a setting, define a constant and list it in `SETTINGS`. The user's file is
`$XDG_CONFIG_HOME/indus/settings.json` (https://specifications.freedesktop.org/basedir-spec/latest/). Keys are dotted or
nested. The project's file, `.indusvx/settings.json`, comes with code that may be untrusted, so it can only make a value
stricter, and only if the setting defines `tighten`. Flags override both files.

An invalid value is an error in the user's file and a note in the project's. An unknown key is always a note.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, cast

from indusagi.core.app_dirs import config_home
from indusagi.core.config_file import read_config_file
from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from induscode.launch.flags import SANDBOXES

if TYPE_CHECKING:
    from induscode.launch.views import View

T = TypeVar("T")
_FILE_NAME = "settings.json"


class SettingError(ValueError):
    """The user's file is unreadable or has an invalid value."""


@record(kw_only=True)
class Setting(Generic[T]):
    """One setting: how to parse it, its default, and who may change it."""

    key: str
    describe: str
    default: T
    read: Callable[[JsonValue], T]
    """Parses a value from a file; raises ValueError with a message like "takes a list of ports"."""
    schema: JsonObject
    """JSON schema of the value in a file."""
    tighten: Callable[[T, T], T] | None = None
    """Merges the user's and the project's value; without it, a project can't set this."""
    flag: str | None = None
    """The flag that overrides it for one run."""


class _Values(TypedDict, Generic[T]):
    """The parser and the JSON schema of a kind of value."""

    read: Callable[[JsonValue], T]
    schema: JsonObject


def _choice(*names: str) -> _Values[str]:
    def read(value: JsonValue) -> str:
        if isinstance(value, str) and value in names:
            return value
        raise ValueError(f"takes one of {', '.join(names)}")

    return {"read": read, "schema": {"enum": [*names]}}


def _integer(low: int, high: int) -> _Values[int]:
    def read(value: JsonValue) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        raise ValueError(f"takes a whole number from {low:,} to {high:,}")

    return {"read": read, "schema": {"type": "integer", "minimum": low, "maximum": high}}


def _parse_text(value: JsonValue) -> str:
    if isinstance(value, str) and value:
        return value
    raise ValueError("takes a text")


def _parse_ports(value: JsonValue) -> tuple[int, ...]:
    if isinstance(value, list):
        return tuple(map(_PORT["read"], value))
    raise ValueError("takes a list of ports")


def parse_hosts(value: JsonValue) -> tuple[str, ...]:
    """Parse one `HOST` or `HOST:PORT`, or a list of them; raise ValueError on anything else."""
    from indusagi.capabilities.ports import FetchError  # noqa: PLC0415 — for a file with hosts
    from indusagi.capabilities.web.url import parse_host_and_port  # noqa: PLC0415 — for a file with hosts
    from induscode.launch.views import InvalidPartError  # noqa: PLC0415 — for a file with hosts

    hosts = tuple(value) if isinstance(value, list) else (value,)
    for host in hosts:
        try:
            parse_host_and_port(host if isinstance(host, str) else "")
        except FetchError:
            raise InvalidPartError(f"takes a list of HOST or HOST:PORT, and {compact_json(host)} is neither") from None
    return cast("tuple[str, ...]", hosts)


def _parse_web_address(value: JsonValue) -> str:
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return value
    raise ValueError("takes an address that starts with http:// or https://")


def _parse_names(value: JsonValue) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(name, str) and name for name in value):
        return cast("tuple[str, ...]", tuple(value))
    raise ValueError("takes a list of names")


def _parse_switch(value: JsonValue) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("takes true or false")


def _parse_patterns(value: JsonValue) -> Mapping[str, str]:
    if is_json_object(value) and all(isinstance(pattern, str) and pattern for pattern in value.values()):
        return cast("Mapping[str, str]", value)
    raise ValueError("takes an object of patterns by the names of servers")


def _parse_views(value: JsonValue) -> Mapping[str, View]:
    from induscode.launch.views import parse_views  # noqa: PLC0415 — for a file with views

    return parse_views(value)


_PORT = _integer(1, 65_535)
_TEXT: _Values[str | None] = {"read": _parse_text, "schema": {"type": "string", "minLength": 1}}
_NAMES: _Values[tuple[str, ...]] = {
    "read": _parse_names,
    "schema": {"type": "array", "items": {"type": "string", "minLength": 1}},
}
_WEB_ADDRESS: _Values[Any] = {"read": _parse_web_address, "schema": {"type": "string", "pattern": "^https?://"}}

# -- the settings -----------------------------------------------------------------------------

WEB_ALLOW_PRIVATE: Setting[tuple[str, ...]] = Setting(
    key="web.allow_private",
    describe="Hosts that webfetch may reach although their address is private.",
    default=(),
    read=parse_hosts,
    schema={"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    flag="--web-allow",
)
WEB_PORTS: Setting[tuple[int, ...]] = Setting(
    key="web.ports",
    describe="The ports that webfetch may connect to.",
    default=(80, 443, 8080, 8443),
    read=_parse_ports,
    schema={"type": "array", "items": _PORT["schema"]},
    tighten=lambda user, project: tuple(port for port in user if port in project),
)
WEB_MAX_BYTES: Setting[int] = Setting(
    key="web.max_bytes",
    describe="The most bytes read of one response.",
    default=5 * 1024 * 1024,
    **_integer(1024, 64 * 1024 * 1024),
    tighten=min,
)
WEB_TIMEOUT_S: Setting[int] = Setting(
    key="web.timeout_s",
    describe="Seconds for one fetch with all its redirects.",
    default=30,
    **_integer(1, 600),
    tighten=min,
)
SEARCH_SEARXNG_URL: Setting[str | None] = Setting(
    key="search.searxng_url",
    describe="The SearXNG instance that websearch uses; it must offer the JSON format.",
    default=None,
    **_WEB_ADDRESS,
)
SANDBOX: Setting[str] = Setting(
    key="sandbox",
    describe="Whether commands run in a sandbox.",
    default="auto",
    **_choice(*SANDBOXES),
    tighten=lambda user, project: "required" if project == "required" else user,
    flag="--sandbox",
)
MODEL_NAME: Setting[str | None] = Setting(
    key="model.name",
    describe="The model: anthropic:NAME, openai:NAME, or NAME at model.base_url.",
    default=None,
    **_TEXT,
    flag="--model",
)
MODEL_BASE_URL: Setting[str | None] = Setting(
    key="model.base_url",
    describe="The address of a server with the OpenAI API.",
    default=None,
    **_WEB_ADDRESS,
    flag="--base-url",
)
MODEL_MAX_REQUESTS: Setting[int] = Setting(
    key="model.max_requests",
    describe="The most requests to the model in one run.",
    default=50,
    **_integer(1, 100_000),
    tighten=min,
    flag="--max-requests",
)
ADDONS_REQUIRED: Setting[tuple[str, ...]] = Setting(
    key="addons.required",
    describe="Addons that must be loaded and work: without them every call is refused.",
    default=(),
    **_NAMES,
    tighten=lambda user, project: tuple(dict.fromkeys((*user, *project))),
)
CALLS_RECORD: Setting[str] = Setting(
    key="calls.record",
    describe="What is recorded of each call: nothing (off), its facts (on), or its texts too (payloads).",
    default="on",
    **_choice("off", "on", "payloads"),
)
CALLS_KEEP_DAYS: Setting[int] = Setting(
    key="calls.keep_days", describe="How many days the records of calls are kept.", default=30, **_integer(1, 3_650)
)
CALLS_PAYLOAD_HOURS: Setting[int] = Setting(
    key="calls.payload_hours",
    describe="How many hours the texts of calls are kept, where calls.record is payloads.",
    default=24,
    **_integer(1, 720),
)
SERVE_VIEWS: Setting[Mapping[str, View]] = Setting(
    key="serve.views",
    describe="Views of indus serve by name: which tools a client sees, under which names.",
    default={},
    read=_parse_views,
    schema={"type": "object"},
)
CLUSTER_AFFINITY: Setting[Mapping[str, str]] = Setting(
    key="cluster.affinity",
    describe="Where servers of a cluster run if there is room: a pattern of node names for each.",
    default={},
    read=_parse_patterns,
    schema={"type": "object", "additionalProperties": {"type": "string", "minLength": 1}},
)
CLUSTER_IDLE: Setting[int] = Setting(
    key="cluster.idle_stop",
    describe="Seconds without a call after which a node of a cluster stops a server until its next call; 0: never.",
    default=0,
    **_integer(0, 7 * 24 * 3600),
    flag="--idle-stop",
)
CLUSTER_BROKERS: Setting[tuple[str, ...]] = Setting(
    key="cluster.brokers", describe="The NATS brokers that indus cluster asks.", default=(), **_NAMES, flag="--cluster"
)
CLUSTER_KEY_FILE: Setting[str | None] = Setting(
    key="cluster.key_file",
    describe="The file with the key of the cluster; cluster.key in the state directory by default.",
    default=None,
    **_TEXT,
    flag="--cluster-key",
)
CLUSTER_CREDENTIALS: Setting[str | None] = Setting(
    key="cluster.credentials_file",
    describe="The file with USER:PASSWORD, a token or NATS credentials for the brokers.",
    default=None,
    **_TEXT,
    flag="--broker-credentials",
)
TOOL_SEARCH_MODE: Setting[str] = Setting(
    key="tool_search.mode",
    describe="Whether models and clients search tools instead of getting all of them: above the limits below (auto).",
    default="auto",
    **_choice("auto", "on", "off"),
    flag="--search",
)
TOOL_SEARCH_SHARE: Setting[int] = Setting(
    key="tool_search.share",
    describe="Percent of the context window that definitions of tools may take before tools are searched.",
    default=10,
    **_integer(1, 100),
)
TOOL_SEARCH_COUNT: Setting[int] = Setting(
    key="tool_search.count",
    describe="How many tools are listed before tools are searched.",
    default=128,
    **_integer(0, 100_000),
)
TOOL_SEARCH_ALWAYS_LIST: Setting[tuple[str, ...]] = Setting(
    key="tool_search.always_list",
    describe="Tools that stay listed where tools are searched: names, in which * stands for any text.",
    default=(),
    **_NAMES,
    flag="--always-list",
)
REGISTRY_URL: Setting[str] = Setting(
    key="registry.url",
    describe="The MCP registry, or a mirror of it, that indus mcp search and install ask.",
    default="https://registry.modelcontextprotocol.io",
    **_WEB_ADDRESS,
)
CODE_ENABLED: Setting[bool] = Setting(
    key="code.enabled",
    describe="Whether models get run_code, which runs a script that calls the other tools.",
    default=False,
    read=_parse_switch,
    schema={"type": "boolean"},
    flag="--code",
)
CODE_CALLS: Setting[int] = Setting(
    key="code.max_calls", describe="The most calls of one script.", default=200, **_integer(1, 10_000), tighten=min
)
CODE_TIMEOUT_S: Setting[int] = Setting(
    key="code.timeout_s",
    describe="Seconds for one script with all its calls.",
    default=600,
    **_integer(1, 86_400),
    tighten=min,
)
CODE_MEMORY_MB: Setting[int] = Setting(
    key="code.memory_mb",
    describe="Memory of the interpreter of one script, in megabytes.",
    default=128,
    **_integer(16, 4_096),
    tighten=min,
)
SETTINGS: Mapping[str, Setting[Any]] = {
    setting.key: setting
    for setting in cast(
        "tuple[Setting[Any], ...]",
        (
            WEB_ALLOW_PRIVATE,
            WEB_PORTS,
            WEB_MAX_BYTES,
            WEB_TIMEOUT_S,
            SEARCH_SEARXNG_URL,
            SANDBOX,
            MODEL_NAME,
            MODEL_BASE_URL,
            MODEL_MAX_REQUESTS,
            ADDONS_REQUIRED,
            CALLS_RECORD,
            CALLS_KEEP_DAYS,
            CALLS_PAYLOAD_HOURS,
            SERVE_VIEWS,
            CLUSTER_AFFINITY,
            CLUSTER_BROKERS,
            CLUSTER_CREDENTIALS,
            CLUSTER_IDLE,
            CLUSTER_KEY_FILE,
            TOOL_SEARCH_MODE,
            TOOL_SEARCH_SHARE,
            TOOL_SEARCH_COUNT,
            TOOL_SEARCH_ALWAYS_LIST,
            REGISTRY_URL,
            CODE_ENABLED,
            CODE_CALLS,
            CODE_TIMEOUT_S,
            CODE_MEMORY_MB,
        ),
    )
}
"""Every setting by its key."""


def build_settings_schema() -> JsonObject:
    """Build the JSON schema of a settings file, for editors. It accepts dotted and nested keys."""
    properties: JsonObject = {}
    groups: dict[str, JsonObject] = {}
    for key, setting in SETTINGS.items():
        properties[key] = schema = {**setting.schema, "description": setting.describe}
        group, dot, name = key.partition(".")
        if dot:
            groups.setdefault(group, {})[name] = schema
    nested: JsonObject = {
        group: {"type": "object", "properties": members, "additionalProperties": False}
        for group, members in groups.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of indus",
        "type": "object",
        "properties": {"$schema": {"type": "string"}, **properties, **nested},
        "additionalProperties": False,
    }


# -- values of a run --------------------------------------------------------------------------


@record
class SettingValue:
    """A value, and the file or flag that set it."""

    value: object
    origin: str


@record
class Settings:
    """The settings of a run. Settings missing from `given` have their default."""

    given: Mapping[str, SettingValue] = field(default_factory=dict[str, SettingValue])
    notes: Sequence[Note] = field(default=(), compare=False)

    def get(self, setting: Setting[T]) -> T:
        """Return the value of a setting."""
        value = self.given.get(setting.key)
        return setting.default if value is None else cast("T", value.value)

    def origin(self, setting: Setting[Any]) -> str:
        """Return which file or flag set the value, or `default`."""
        value = self.given.get(setting.key)
        return "default" if value is None else value.origin

    def with_flag(self, setting: Setting[T], value: T) -> Settings:
        """Return a copy in which the setting's flag overrides it."""
        given = {**self.given, setting.key: SettingValue(value, f"flag {setting.flag}")}
        return Settings(given, self.notes)


def user_settings_path(environ: Mapping[str, str]) -> str:
    """Return the path of the user's settings file."""
    return os.path.join(config_home(environ), "indus", _FILE_NAME)


def project_settings_path(cwd: str) -> str:
    """Return the path of a project's settings file."""
    return os.path.join(cwd, ".indusvx", _FILE_NAME)


def load_settings(cwd: str, environ: Mapping[str, str]) -> Settings:
    """Read the user's file and the project's.

    Raises:
        SettingError: The user's file is unreadable or has an invalid value.
    """
    user, project = user_settings_path(environ), project_settings_path(cwd)
    notes: list[Note] = []
    values, errors = _read_file(user, notes)
    if errors:
        raise SettingError(errors[0])
    given = {key: SettingValue(value, f"user {user}") for key, value in values.items()}
    values, errors = _read_file(project, notes)
    notes.extend(Note(f"file {project}", f"skipped: {error}", "correct it") for error in errors)
    for key, value in values.items():
        setting = SETTINGS[key]
        if setting.tighten is None:
            notes.append(Note(f"file {project}", f"{key!r} is ignored: a project cannot set it", f"set it in {user}"))
            continue
        before = given[key].value if key in given else setting.default
        stricter = setting.tighten(before, value)
        if stricter != before:
            given[key] = SettingValue(stricter, f"project {project}")
        if stricter != value:
            notes.append(Note(f"file {project}", f"{key!r} is ignored: a project can only make it stricter"))
    return Settings(given, tuple(notes))


def _read_file(path: str, notes: list[Note]) -> tuple[Mapping[str, object], Sequence[str]]:
    """Read a file and return its valid values and its errors."""
    if not os.path.lexists(path):
        return {}, ()
    content = read_config_file(path)
    if content.trouble is not None:
        place = "" if content.line is None else f":{content.line}:{content.column}"
        return {}, [f"{path}{place}: {content.trouble}"]
    if not is_json_object(content.document):
        return {}, [f"{path}:1:1: it is not an object"]
    values: dict[str, object] = {}
    errors: list[str] = []
    for key, value in _flatten(content.document).items():
        setting = SETTINGS.get(key)
        if setting is None:
            from indusagi.capabilities.arguments import find_similar_name  # noqa: PLC0415 — for a mistyped key

            similar = find_similar_name(key, tuple(SETTINGS))
            hint = f": did you mean {similar!r}?" if similar else ""
            notes.append(Note(f"file {path}", f"there is no setting {key!r}{hint}"))
            continue
        try:
            values[key] = setting.read(value)
        except ValueError as exc:
            from induscode.launch.views import InvalidPartError  # noqa: PLC0415 — for an invalid value

            shown = "" if isinstance(exc, InvalidPartError) else f", not {compact_json(value)[:80]}"
            errors.append(f"{path}: {key} {exc}{shown}")
    return values, errors


def _flatten(document: JsonObject) -> JsonObject:
    """Turn nested objects into dotted keys, without the editors' `$schema`."""
    groups = {key.partition(".")[0] for key in SETTINGS if "." in key}
    flat: JsonObject = {}
    for key, value in document.items():
        if key in groups and is_json_object(value):
            flat.update({f"{key}.{name}": inner for name, inner in value.items()})
        elif key != "$schema":
            flat[key] = value
    return flat
