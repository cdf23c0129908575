"""User and project settings: one typed table, two files, and the origin of each value.

To add a setting, declare a constant below. The user's file is `$XDG_CONFIG_HOME/indus/settings.json`
(https://specifications.freedesktop.org/basedir-spec/latest/). Keys are dotted or nested. The project's file,
`.indusvx/settings.json`, comes with code that may be untrusted, so it can only make a value stricter, and only if the
setting defines `tighten`. Flags override both files.

An invalid value is an error in the user's file and a note in the project's. An unknown key is always a note.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Generic, TypeVar, cast

from indusagi.core.app_dirs import config_home
from indusagi.core.config_file import read_config_file
from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import SecretText, parse_secret_text
from induscode.launch.views import InvalidPartError, View, is_list, is_map, is_text, parse_views

T = TypeVar("T")
_FILE_NAME = "settings.json"
HOOKS = "hooks"
"""The key of command hooks, which `induscode.addons.hooks` reads."""


class SettingError(ValueError):
    """The user's file is unreadable or has an invalid value."""


@record
class Values(Generic[T]):
    """The values that a setting takes."""

    read: Callable[[JsonValue], T]
    """Parses a value from a file; raises ValueError with a message like "takes a list of ports"."""
    schema: JsonObject
    """JSON schema of the value in a file."""


@record
class Setting(Generic[T]):
    """One setting: its values, its default, and who may change it."""

    key: str
    describe: str
    default: T
    values: Values[T]
    tighten: Callable[[T, T], T] | None = field(default=None, kw_only=True)
    """Merges the user's and the project's value; without it, a project can't set this."""
    flag: str | None = field(default=None, kw_only=True)
    """The flag that overrides it for one run."""
    variable: str | None = field(default=None, kw_only=True)
    """The environment variable that applies if no file sets it."""
    is_secret: bool = field(default=False, kw_only=True)
    """Whether the user's file may refer to secrets in it: `${keyring:NAME}`."""


def _checked(
    is_valid: Callable[[Any], bool], takes: str, schema: JsonObject, convert: Callable[[Any], Any] = lambda value: value
) -> Values[Any]:
    """Build values from a check, the message about valid ones, and their schema."""

    def read(value: JsonValue) -> Any:
        if is_valid(value):
            return convert(value)
        raise ValueError(f"takes {takes}")

    return Values(read, schema)


def _choice(*names: str) -> Values[str]:
    return _checked(lambda value: value in names, f"one of {', '.join(names)}", {"enum": [*names]})


def _integer(low: int, high: int) -> Values[int]:
    schema: JsonObject = {"type": "integer", "minimum": low, "maximum": high}
    # Not `isinstance`: a bool is an int.
    return _checked(
        lambda value: type(value) is int and low <= value <= high, f"a whole number from {low:,} to {high:,}", schema
    )


def parse_hosts(value: JsonValue) -> tuple[str, ...]:
    """Parse one `HOST` or `HOST:PORT`, or a list of them; raise ValueError on anything else."""
    from indusagi.net.address import FetchError, parse_host_and_port  # noqa: PLC0415 — for a file with hosts

    hosts = tuple(value) if isinstance(value, list) else (value,)
    for host in hosts:
        try:
            parse_host_and_port(host if isinstance(host, str) else "")
        except FetchError:
            raise InvalidPartError(f"takes a list of HOST or HOST:PORT, and {compact_json(host)} is neither") from None
    return cast("tuple[str, ...]", hosts)


_SOME_TEXT: JsonObject = {"type": "string", "minLength": 1}
_PORT = _integer(1, 65_535)
_PORTS: Values[tuple[int, ...]] = _checked(
    lambda value: isinstance(value, list),
    "a list of ports",
    {"type": "array", "items": _PORT.schema},
    lambda value: tuple(map(_PORT.read, value)),
)
_TEXT: Values[str | None] = _checked(is_text, "a text", _SOME_TEXT)
_NAMES: Values[tuple[str, ...]] = _checked(is_list, "a list of names", {"type": "array", "items": _SOME_TEXT}, tuple)
_PATTERNS: Values[Mapping[str, str]] = _checked(
    is_map, "an object of patterns by the names of servers", {"type": "object", "additionalProperties": _SOME_TEXT}
)


def _is_web_address(value: JsonValue) -> bool:
    return isinstance(value, str) and value.startswith(("http://", "https://"))


_WEB_ADDRESS = _checked(
    _is_web_address, "an address that starts with http:// or https://", {"type": "string", "pattern": "^https?://"}
)
_ANNOUNCEMENT = _checked(
    lambda value: (is_list(value) and bool(value)) or value == "desktop" or _is_web_address(value),
    "desktop, an address that starts with http:// or https://, or a command as a list of words",
    {
        "anyOf": [
            {"enum": ["desktop"]},
            {"type": "string", "pattern": "^https?://"},
            {"type": "array", "items": _SOME_TEXT, "minItems": 1},
        ]
    },
    lambda value: value if isinstance(value, str) else tuple(value),
)
_SWITCH: Values[bool] = _checked(lambda value: isinstance(value, bool), "true or false", {"type": "boolean"})
_HOSTS = Values(parse_hosts, {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})

# -- the settings -----------------------------------------------------------------------------

WEB_ALLOW_PRIVATE = Setting(
    "web.allow_private", "Private hosts that webfetch and connectors may reach.", (), _HOSTS, flag="--web-allow"
)
WEB_PORTS = Setting(
    "web.ports",
    "The ports that webfetch and connectors may connect to.",
    (80, 443, 8080, 8443),
    _PORTS,
    tighten=lambda user, project: tuple(port for port in user if port in project),
)
WEB_MAX_BYTES = Setting(
    "web.max_bytes",
    "The most bytes read of one response.",
    5 * 1024 * 1024,
    _integer(1024, 64 * 1024 * 1024),
    tighten=min,
)
WEB_TIMEOUT_S = Setting(
    "web.timeout_s", "Seconds for one fetch with all its redirects.", 30, _integer(1, 600), tighten=min
)
SEARCH_SEARXNG_URL: Setting[str | None] = Setting(
    "search.searxng_url",
    "The SearXNG instance that websearch uses; it must offer the JSON format.",
    None,
    _WEB_ADDRESS,
    variable="INDUS_SEARXNG_URL",
)
SANDBOX = Setting(
    "sandbox",
    "Whether commands run in a sandbox; with required, a server without one doesn't start either.",
    "auto",
    _choice("auto", "required", "off"),
    tighten=lambda user, project: "required" if project == "required" else user,
    flag="--sandbox",
)
REVIEW: Setting[Any] = Setting(
    "review",
    "What the review does with a new definition of a server that may mislead a model: hold it until you approve it, "
    "note it, or nothing (off).",
    "hold",
    _choice("hold", "note", "off"),
    tighten=lambda user, project: min(user, project, key=("hold", "note", "off").index),
)
MODEL_NAME = Setting(
    "model.name", "The model: anthropic:NAME, openai:NAME, or NAME at model.base_url.", None, _TEXT, flag="--model"
)
MODEL_BASE_URL: Setting[str | None] = Setting(
    "model.base_url", "The address of a server with the OpenAI API.", None, _WEB_ADDRESS, flag="--base-url"
)
MODEL_MAX_REQUESTS = Setting(
    "model.max_requests",
    "The most requests to the model in one run.",
    50,
    _integer(1, 100_000),
    tighten=min,
    flag="--max-requests",
)
ADDONS_REQUIRED = Setting(
    "addons.required",
    "Addons that must be loaded and work: without them every call is refused.",
    (),
    _NAMES,
    tighten=lambda user, project: tuple(dict.fromkeys((*user, *project))),
)
CALLS_RECORD = Setting(
    "calls.record",
    "What is recorded of each call: nothing (off), its facts (on), or its texts too (payloads).",
    "on",
    _choice("off", "on", "payloads"),
)
CALLS_KEEP_DAYS = Setting("calls.keep_days", "How many days the records of calls are kept.", 30, _integer(1, 3_650))
CALLS_PAYLOAD_HOURS = Setting(
    "calls.payload_hours",
    "How many hours the texts of calls are kept, where calls.record is payloads.",
    24,
    _integer(1, 720),
)
APPROVALS_MODE: Setting[Any] = Setting(
    "approvals.mode",
    "Calls at a gateway that need a person: wait for one (ask), or are refused (deny). By default, only calls that an "
    "ask rule names wait, where somebody can answer.",
    None,
    _choice("ask", "deny"),
    tighten=lambda user, project: "deny" if project == "deny" else user,
    flag="--approvals",
)
APPROVALS_WAIT_S = Setting(
    "approvals.wait_s", "Seconds that a call at a gateway waits for a person.", 300, _integer(1, 86_400), tighten=min
)
APPROVALS_NOTIFY: Setting[Any] = Setting(
    "approvals.notify",
    "Where a gateway announces a call that waits: desktop, the address of a webhook, or a command as a list of words.",
    None,
    _ANNOUNCEMENT,
    is_secret=True,
)
_FLOW_MODES = ("off", "note", "ask", "deny")


def _tighten_flow(user: Any, project: Any) -> Any:
    """Return the stricter mode. Without the user's, only what a session does by default is certain."""
    return max(user or "ask", project, key=_FLOW_MODES.index) if user or project in {"ask", "deny"} else user


APPROVAL_HARMLESS = Setting(
    "approval.harmless",
    "Whether commands that only read the workspace run without a question, in a sandbox without writes and network.",
    default=True,
    values=_SWITCH,
    tighten=lambda user, project: user and project,
)
FLOW_MODE: Setting[Any] = Setting(
    "flow.mode",
    "A call that would send data out after private and untrusted data were read: runs (off), runs and is recorded "
    "(note), needs a yes (ask), or is refused (deny). By default a session asks; a gateway asks where you confirmed "
    "the labels, and otherwise records.",
    None,
    _choice(*_FLOW_MODES),
    tighten=_tighten_flow,
    flag="--flow",
)
SERVE_VIEWS: Setting[Mapping[str, View]] = Setting(
    "serve.views",
    "Views of indus serve by name: which tools a client sees, under which names.",
    {},
    Values(parse_views, {"type": "object"}),
    is_secret=True,
)
CALLS_PER_DAY = Setting(
    "serve.calls_per_day",
    "The most calls per day (UTC) of each principal of indus serve --auth; 0: no limit.",
    0,
    _integer(0, 1_000_000_000),
)
TOKENS_PER_DAY = Setting(
    "serve.tokens_per_day",
    "The most estimated tokens per day (UTC) of each principal's calls at indus serve --auth; 0: no limit.",
    0,
    _integer(0, 1_000_000_000_000),
)
CLUSTER_AFFINITY = Setting(
    "cluster.affinity",
    "Where servers of a cluster run if there is room: a pattern of node names for each.",
    {},
    _PATTERNS,
)
CLUSTER_BROKERS = Setting(
    "cluster.brokers", "The NATS brokers that indus cluster asks.", (), _NAMES, flag="--cluster", is_secret=True
)
CLUSTER_CREDENTIALS = Setting(
    "cluster.credentials_file",
    "The file with USER:PASSWORD, a token or NATS credentials for the brokers.",
    None,
    _TEXT,
    flag="--broker-credentials",
    is_secret=True,
)
CLUSTER_IDLE = Setting(
    "cluster.idle_stop",
    "Seconds without a call after which a node of a cluster stops a server until its next call; 0: never.",
    0,
    _integer(0, 7 * 24 * 3600),
    flag="--idle-stop",
)
CLUSTER_KEY_FILE = Setting(
    "cluster.key_file",
    "The file with the key of the cluster; cluster.key in the state directory by default.",
    None,
    _TEXT,
    flag="--cluster-key",
    is_secret=True,
)
TOOL_SEARCH_MODE = Setting(
    "tool_search.mode",
    "Whether models and clients search tools instead of getting all of them: above the limits below (auto).",
    "auto",
    _choice("auto", "on", "off"),
    flag="--search",
)
TOOL_SEARCH_SHARE = Setting(
    "tool_search.share",
    "Percent of the context window that definitions of tools may take before tools are searched.",
    10,
    _integer(1, 100),
)
TOOL_SEARCH_COUNT = Setting(
    "tool_search.count", "How many tools are listed before tools are searched.", 128, _integer(0, 100_000)
)
TOOL_SEARCH_ALWAYS_LIST = Setting(
    "tool_search.always_list",
    "Tools that stay listed where tools are searched: names, in which * stands for any text.",
    (),
    _NAMES,
    flag="--always-list",
)
VI_MODE = Setting(
    "session.vi",
    "Whether the input line of the session has the keys of vi.",
    False,  # noqa: FBT003 — the default of a switch
    _SWITCH,
)
REGISTRY_URL: Setting[str] = Setting(
    "registry.url",
    "The MCP registry, or a mirror of it, that indus mcp search and install ask.",
    "https://registry.modelcontextprotocol.io",
    _WEB_ADDRESS,
)
CODE_ENABLED = Setting(
    "code.enabled",
    "Whether models get run_code, which runs a script that calls the other tools.",
    False,  # noqa: FBT003 — the default of a switch
    _SWITCH,
    flag="--code",
)
CODE_CALLS = Setting("code.max_calls", "The most calls of one script.", 200, _integer(1, 10_000), tighten=min)
CODE_TIMEOUT_S = Setting(
    "code.timeout_s", "Seconds for one script with all its calls.", 600, _integer(1, 86_400), tighten=min
)
CODE_MEMORY_MB = Setting(
    "code.memory_mb", "Memory of the interpreter of one script, in megabytes.", 128, _integer(16, 4_096), tighten=min
)
_rows = (cast("Setting[Any]", one) for one in [*globals().values()] if isinstance(one, Setting))
SETTINGS: Mapping[str, Setting[Any]] = {setting.key: setting for setting in _rows}
"""Every setting by its key, in the order above."""


def build_settings_schema() -> JsonObject:
    """Build the JSON schema of a settings file, for editors. It accepts dotted and nested keys."""
    properties: JsonObject = {}
    groups: dict[str, JsonObject] = {}
    for key, setting in SETTINGS.items():
        properties[key] = schema = {**setting.values.schema, "description": setting.describe}
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
        "properties": {"$schema": {"type": "string"}, HOOKS: {"type": "object"}, **properties, **nested},
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


def read_setting(setting: Setting[Any], words: Sequence[str], folder: str) -> JsonValue:
    """Find the JSON value that `words` mean for a setting of the file in `folder`, or raise `SettingError`.

    A word is JSON (`5`, `true`, `["a"]`) if the setting takes that, and otherwise a text. Several are a list.
    """
    parsed = [_parse_json(word) for word in words]
    single: list[JsonValue] = [parsed[0], words[0]] if len(words) == 1 else []
    candidates: list[JsonValue] = [*single, [*parsed], [*words]]
    error: ValueError | None = None
    for value in candidates:
        try:
            setting.values.read(_keep_references(value, folder, setting))
        except ValueError as exc:
            error = error or exc
        else:
            return value
    raise SettingError(f"{setting.key} {error}, not {' '.join(words)}") from error


def _parse_json(text: str) -> JsonValue:
    try:
        return cast("JsonValue", json.loads(text))
    except (ValueError, RecursionError):
        return text


def load_settings(cwd: str, environ: Mapping[str, str]) -> Settings:
    """Read the user's file and the project's; `SettingError` if the user's is unreadable or has an invalid value."""
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
            values[key] = setting.values.read(_keep_references(value, os.path.dirname(path), setting))
        except ValueError as exc:
            shown = "" if isinstance(exc, InvalidPartError) else f", not {compact_json(value)[:80]}"
            errors.append(f"{path}: {key} {exc}{shown}")
    return values, errors


def _keep_references(value: JsonValue, folder: str, setting: Setting[Any]) -> JsonValue:
    """Keep the references to secrets in a value, or raise `ValueError` if the setting takes none."""
    if isinstance(value, str):
        text = parse_secret_text(value, folder)
        if isinstance(text, SecretText) and not setting.is_secret:
            raise ValueError("takes no reference to a secret")
        return text
    if isinstance(value, list):
        return [_keep_references(member, folder, setting) for member in value]
    if isinstance(value, dict):
        return {key: _keep_references(member, folder, setting) for key, member in value.items()}
    return value


def _flatten(document: JsonObject) -> JsonObject:
    """Turn nested objects into dotted keys, without hooks and the editors' `$schema`."""
    groups = {key.partition(".")[0] for key in SETTINGS if "." in key}
    flat: JsonObject = {}
    for key, value in document.items():
        if key in groups and is_json_object(value):
            flat.update({f"{key}.{name}": inner for name, inner in value.items()})
        elif key not in {"$schema", HOOKS}:
            flat[key] = value
    return flat
