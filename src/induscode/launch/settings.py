"""The settings of a user and a project: one typed table, two files, and where each value is from.

A setting is one constant in this module and one row of `SETTINGS`. The file of the user is
`$XDG_CONFIG_HOME/indus/settings.json`; keys are joined by dots, or nested as objects. The file of
a project, `.indusvx/settings.json`, comes with code that nobody has vouched for: it can make a
value stricter where a setting says how, and nothing else. A flag beats both.

A value that is wrong is an error in the user's file and a note in the project's. A key that does
not exist is a note.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Generic, TypeVar, cast

from indusagi.core.config_file import read_config_file
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.notes import Note
from indusagi.core.records import record
from induscode.launch.flags import SANDBOXES

T = TypeVar("T")
_FILE_NAME = "settings.json"


class BadSetting(ValueError):
    """A value that a setting does not take, or a file of the user's that cannot be read."""


@record(kw_only=True)
class Setting(Generic[T]):
    """One setting: what it takes, what it is without anybody's word, and who may change it."""

    key: str
    describe: str
    default: T
    read: Callable[[JsonValue], T]
    """Makes the value of what stands in a file; a ValueError says what it takes instead."""
    schema: JsonObject
    """The JSON schema of what stands in a file."""
    tighten: Callable[[T, T], T] | None = None
    """Joins the value of the user and that of a project; None: a project has no say."""
    flag: str | None = None
    """The flag of the table that sets it for one run."""


# -- what a file may say ----------------------------------------------------------------------


def _text(value: JsonValue) -> str:
    if isinstance(value, str) and value:
        return value
    raise ValueError("takes a text")


def _choice(*names: str) -> Callable[[JsonValue], str]:
    def read(value: JsonValue) -> str:
        if isinstance(value, str) and value in names:
            return value
        raise ValueError(f"takes one of {', '.join(names)}")

    return read


def _number(low: int, high: int) -> Callable[[JsonValue], int]:
    def read(value: JsonValue) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        raise ValueError(f"takes a whole number from {low:,} to {high:,}")

    return read


def _ports(value: JsonValue) -> tuple[int, ...]:
    read = _number(1, 65_535)
    if isinstance(value, list):
        return tuple(read(one) for one in value)
    raise ValueError("takes a list of ports")


def read_hosts(value: JsonValue) -> tuple[str, ...]:
    """Read one `HOST` or `HOST:PORT`, or a list of them.

    Raises:
        ValueError: One of them is neither.
    """
    from indusagi.capabilities.ports import FetchError  # noqa: PLC0415 — for a file that has some
    from indusagi.capabilities.web.url import parse_host_and_port  # noqa: PLC0415 — as above

    for one in value if isinstance(value, list) else (value,):
        try:
            parse_host_and_port(one if isinstance(one, str) else "")
        except FetchError:
            said = f"takes a list of HOST or HOST:PORT, and {compact_json(one)} is neither"
            raise ValueError(said) from None
    return cast("tuple[str, ...]", tuple(value if isinstance(value, list) else (value,)))


def _web_address(value: JsonValue) -> str:
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return value
    raise ValueError("takes an address that starts with http:// or https://")


def _stricter_sandbox(users: str, projects: str) -> str:
    return "required" if projects == "required" else users


# -- the table --------------------------------------------------------------------------------

_HOSTS: JsonObject = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


def _whole(low: int, high: int) -> JsonObject:
    return {"type": "integer", "minimum": low, "maximum": high}


WEB_ALLOW_PRIVATE: Setting[tuple[str, ...]] = Setting(
    key="web.allow_private",
    describe="Servers of your own that webfetch may reach though their address is private.",
    default=(),
    read=read_hosts,
    schema=_HOSTS,
    flag="--web-allow",
)
WEB_PORTS: Setting[tuple[int, ...]] = Setting(
    key="web.ports",
    describe="The ports that webfetch may dial.",
    default=(80, 443, 8080, 8443),
    read=_ports,
    schema={"type": "array", "items": _whole(1, 65_535)},
    tighten=lambda users, projects: tuple(one for one in users if one in projects),
)
WEB_MAX_BYTES: Setting[int] = Setting(
    key="web.max_bytes",
    describe="The most that is ever read of one answer.",
    default=5 * 1024 * 1024,
    read=_number(1024, 64 * 1024 * 1024),
    schema=_whole(1024, 64 * 1024 * 1024),
    tighten=min,
)
WEB_TIMEOUT_S: Setting[int] = Setting(
    key="web.timeout_s",
    describe="Seconds for one fetch with all its redirects.",
    default=30,
    read=_number(1, 600),
    schema=_whole(1, 600),
    tighten=min,
)
SEARCH_SEARXNG_URL: Setting[str | None] = Setting(
    key="search.searxng_url",
    describe="The SearXNG instance that websearch asks; it has to answer with JSON.",
    default=None,
    read=_web_address,
    schema={"type": "string", "pattern": "^https?://"},
)
SANDBOX: Setting[str] = Setting(
    key="sandbox",
    describe="Whether commands run in a sandbox.",
    default="auto",
    read=_choice(*SANDBOXES),
    schema={"enum": [*SANDBOXES]},
    tighten=_stricter_sandbox,
    flag="--sandbox",
)
MODEL_NAME: Setting[str | None] = Setting(
    key="model.name",
    describe="Which model answers: anthropic:NAME, openai:NAME, or NAME at model.base_url.",
    default=None,
    read=_text,
    schema={"type": "string", "minLength": 1},
    flag="--model",
)
MODEL_BASE_URL: Setting[str | None] = Setting(
    key="model.base_url",
    describe="The address of a server that speaks the OpenAI protocol.",
    default=None,
    read=_web_address,
    schema={"type": "string", "pattern": "^https?://"},
    flag="--base-url",
)
MODEL_MAX_REQUESTS: Setting[int] = Setting(
    key="model.max_requests",
    describe="The most requests to the model in one run.",
    default=50,
    read=_number(1, 100_000),
    schema=_whole(1, 100_000),
    tighten=min,
    flag="--max-requests",
)
SETTINGS: Mapping[str, Setting[Any]] = {
    one.key: one
    for one in cast(
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
        ),
    )
}
"""Every setting by its key."""


def settings_schema() -> JsonObject:
    """Give the JSON schema of a settings file, for editors."""
    properties: JsonObject = {
        key: {**setting.schema, "description": setting.describe} for key, setting in SETTINGS.items()
    }
    groups: dict[str, JsonObject] = {}
    for key, schema in properties.items():
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


# -- what is in force -------------------------------------------------------------------------


@record
class Effective:
    """The value of a setting, and who said so."""

    value: object
    origin: str


@record
class Settings:
    """The settings of a run. One that nobody has set has its default."""

    given: Mapping[str, Effective] = field(default_factory=dict[str, Effective])
    notes: Sequence[Note] = field(default=(), compare=False)

    def get(self, setting: Setting[T]) -> T:
        """Give the value that is in force."""
        found = self.given.get(setting.key)
        return setting.default if found is None else cast("T", found.value)

    def origin(self, setting: Setting[Any]) -> str:
        """Tell whose word the value is."""
        found = self.given.get(setting.key)
        return "default" if found is None else found.origin

    def with_flag(self, setting: Setting[T], value: T) -> Settings:
        """Set a value for this run by the setting's flag."""
        given = {**self.given, setting.key: Effective(value, f"flag {setting.flag}")}
        return Settings(given, self.notes)


def user_settings_path(environ: Mapping[str, str]) -> str:
    """Name the settings file of the user."""
    home = environ.get("HOME") or os.path.expanduser("~")
    config = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    return os.path.join(config, "indus", _FILE_NAME)


def project_settings_path(cwd: str) -> str:
    """Name the settings file of a project."""
    return os.path.join(cwd, ".indusvx", _FILE_NAME)


def load_settings(cwd: str, environ: Mapping[str, str]) -> Settings:
    """Read both files.

    Raises:
        BadSetting: The user's file cannot be read, or has a value that its setting does not take.
    """
    user, project = user_settings_path(environ), project_settings_path(cwd)
    notes: list[Note] = []
    given = {key: Effective(value, f"user {user}") for key, value in _read_user(user, notes).items()}
    for key, value in _read_project(project, notes).items():
        setting = SETTINGS[key]
        if setting.tighten is None:
            said = f"{key!r} is ignored: a project cannot set it"
            notes.append(Note(f"file {project}", said, f"set it in {user}"))
            continue
        before = given[key].value if key in given else setting.default
        stricter = setting.tighten(before, value)
        if stricter != before:
            given[key] = Effective(stricter, f"project {project}")
        if stricter != value:
            notes.append(Note(f"file {project}", f"{key!r} is ignored: a project can only make it stricter"))
    return Settings(given, tuple(notes))


def _read_user(path: str, notes: list[Note]) -> Mapping[str, object]:
    values, wrong = _read(path, notes)
    if wrong:
        raise BadSetting(wrong[0])
    return values


def _read_project(path: str, notes: list[Note]) -> Mapping[str, object]:
    values, wrong = _read(path, notes)
    notes.extend(Note(f"file {path}", f"skipped: {one}", "correct it") for one in wrong)
    return values


def _read(path: str, notes: list[Note]) -> tuple[Mapping[str, object], Sequence[str]]:
    """Read a file: its values, and what is wrong with it."""
    if not os.path.lexists(path):
        return {}, ()
    found = read_config_file(path)
    if found.trouble is not None:
        place = "" if found.line is None else f":{found.line}:{found.column}"
        return {}, [f"{path}{place}: {found.trouble}"]
    if not is_json_object(found.document):
        return {}, [f"{path}:1:1: it is not an object"]
    values: dict[str, object] = {}
    wrong: list[str] = []
    for key, value in _flat(found.document).items():
        setting = SETTINGS.get(key)
        if setting is None:
            notes.append(Note(f"file {path}", f"there is no setting {key!r}{_hint(key)}"))
            continue
        try:
            values[key] = setting.read(value)
        except ValueError as exc:
            wrong.append(f"{path}: {key} {exc}, not {compact_json(value)[:80]}")
    return values, wrong


def _flat(document: JsonObject) -> JsonObject:
    """Join the keys of nested objects by dots; `$schema` is for editors."""
    groups = {key.partition(".")[0] for key in SETTINGS if "." in key}
    flat: JsonObject = {}
    for key, value in document.items():
        if key in groups and is_json_object(value):
            flat.update({f"{key}.{name}": inner for name, inner in value.items()})
        elif key != "$schema":
            flat[key] = value
    return flat


def _hint(key: str) -> str:
    from indusagi.capabilities.arguments import find_similar_name  # noqa: PLC0415 — for a mistyped key

    meant = find_similar_name(key, tuple(SETTINGS))
    return f": did you mean {meant!r}?" if meant else ""
