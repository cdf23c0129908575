"""The invocation: the flags and settings of a run in one value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any, Literal, TypeAlias, cast

from indusagi.core.json import JsonObject
from indusagi.core.records import record
from induscode.launch.flags import FlagKind, find_conflict, flag_specs, split_list
from induscode.launch.settings import SETTINGS, WEB_ALLOW_PRIVATE, Settings, parse_hosts

OutputFormat: TypeAlias = Literal["text", "json", "stream-json"]
Approval: TypeAlias = Literal["ask", "auto-edit", "all"]
SandboxMode: TypeAlias = Literal["auto", "required", "off"]

_FIELDS = {"print": "prompt", "continue": "continue_last"}
"""Fields of an invocation that aren't named like their flag."""
_ELSEWHERE = ("code", "flow", "web_allow", "cwd")
"""Flags that end up in the settings, or that the caller resolves."""


@record(kw_only=True)
class Invocation:
    """One run of the program."""

    cwd: str
    prompt: str | None = None
    output_format: OutputFormat = "text"
    verbose: bool = False
    """Write all that the model says, not only the answer."""
    fail_on_denied: bool = False
    continue_last: bool = False
    resume: str | None = None
    fork: bool = False
    """Continue in a copy of the conversation."""
    model: str | None = None
    base_url: str | None = None
    context_window: int | None = None
    """In tokens; by default as the model's server reports."""
    max_requests: int = 50
    max_tokens: int | None = None
    max_cost: float | None = None
    """In US dollars."""
    tools: tuple[str, ...] | None = None
    """`None` means all native tools."""
    no_tools: bool = False
    mcp: tuple[str, ...] | None = None
    """`None` means the servers configured for the working directory."""
    no_mcp: bool = False
    no_config: bool = False
    """Use only `given_servers`, no configuration files."""
    given_servers: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    """Servers passed in by an ACP editor or a program, by name, as configuration rows."""
    given_by: str = "the editor"
    """Who passed them in, for messages."""
    cluster_config: str = ""
    """On a cluster node, the file with the cluster's servers; other files win on name conflicts."""
    no_addons: bool = False
    plain: bool = False
    """Show the session as plain lines, without a live region."""
    allow: tuple[str, ...] = ()
    approval: Approval = "ask"
    sandbox: SandboxMode = "auto"
    settings: Settings = field(default_factory=Settings)
    """The user's and project's settings, overridden by flags."""


def build_invocation(
    values: Mapping[str, object], cwd: str, settings: Settings | None = None, given: Collection[str] | None = None
) -> Invocation:
    """Build the invocation from the flags' values; `ValueError` if they're invalid or contradict each other.

    `given` holds the keys of the flags on the command line, by default those that differ from their default. Other
    values come from the settings.
    """
    read = {spec.key: values.get(spec.key) for spec in flag_specs()}
    for spec in flag_specs():
        if spec.kind is FlagKind.LIST:
            words = cast("tuple[str, ...]", read[spec.key] or ())
            read[spec.key] = split_list(words) or None
            if words and read[spec.key] is None:
                raise ValueError(f"{spec.name} names nothing")
    if given is None:
        given = {spec.key for spec in flag_specs() if read[spec.key] not in (None, False, (), spec.default)}
    # Reject two flags if we'd ignore one of them.
    if conflict := find_conflict(flag_specs(), [spec.name for spec in flag_specs() if spec.key in given]):
        raise ValueError(conflict)
    if read["fork"] and not read["continue"] and read["resume"] is None:
        raise ValueError("--fork needs --continue or --resume ID")
    settings = _merge(read, given, settings or Settings())
    for key in ("context_window", "max_requests"):
        if read[key] is not None:
            read[key] = _parse_number(f"--{key.replace('_', '-')}", read[key])
    given_values: dict[str, Any] = {
        _FIELDS.get(key, key): value for key, value in read.items() if value is not None and key not in _ELSEWHERE
    }
    return Invocation(cwd=cwd, settings=settings, **given_values)


def _merge(read: dict[str, object], given: Collection[str], settings: Settings) -> Settings:
    """Fill in values from the settings where there's no flag, and let flags override the settings."""
    keys = {spec.name: spec.key for spec in flag_specs()}
    for setting in SETTINGS.values():
        key = keys.get(setting.flag or "")
        if setting is WEB_ALLOW_PRIVATE or key is None:
            continue
        if key in given:
            settings = settings.with_flag(setting, read[key])
        elif settings.origin(setting) != "default":
            read[key] = settings.get(setting)
    hosts = cast("tuple[str, ...]", read["web_allow"] or ())
    if hosts:
        try:
            allowed = parse_hosts(list(hosts))
        except ValueError as exc:
            raise ValueError(f"--web-allow {exc}") from exc
        present = settings.get(WEB_ALLOW_PRIVATE)
        settings = settings.with_flag(WEB_ALLOW_PRIVATE, (*present, *allowed))
    return settings


def _parse_number(flag: str, value: object) -> int:
    text = str(value)
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{flag} takes a number from 1 on, not {text!r}")
    return int(text)
