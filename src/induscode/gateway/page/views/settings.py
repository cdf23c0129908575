"""Settings and permission rules: each with its origin, and forms that change the user's own files."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from indusagi.core.faults import CoreError
from indusagi.core.json import is_json_object
from indusagi.core.text import format_count
from induscode.boot.catalog import build_setting_row, format_setting
from induscode.core.consent import Consent, build_consent
from induscode.gateway.page.html import (
    Html,
    PageError,
    PageView,
    address,
    build_entry,
    build_form,
    run_action,
    show_nothing,
    show_state,
    table,
    tag,
)
from induscode.launch.settings import (
    SETTINGS,
    Setting,
    SettingError,
    Settings,
    load_settings,
    read_setting,
    user_settings_path,
)
from induscode.permissions.rules import (
    Effect,
    Rule,
    RuleOrigin,
    RuleStore,
    dump_rule,
    load_startup_rules,
    parse_rule,
    parse_rule_row,
)
from induscode.servers.clients.install import remove_member, set_member
from induscode.servers.edits import edit_setting

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from indusagi.core.json import JsonValue
    from induscode.gateway.page.access import PageRequest
    from induscode.gateway.page.html import Node

_LATER: Final = "Running sessions and gateways read it at their next start."


# -- settings ---------------------------------------------------------------------------------


async def show_settings(page: PageRequest) -> PageView:
    """Show all settings by group, or the form of one, after the action of a submitted form."""
    said = await run_action(page, {"set": _set, "unset": _set})
    try:
        settings = await to_thread.run_sync(load_settings, page.source.session.invocation.cwd, os.environ)
    except SettingError as exc:
        raise PageError(str(exc), 500) from exc
    key = page.query.get("key", "")
    if key and key not in SETTINGS:
        raise PageError(f"There is no setting {key!r}")
    groups: dict[str, list[Sequence[Node]]] = {}
    for name in SETTINGS:
        groups.setdefault(_name_group(name), []).append(_build_row(page, settings, name))
    notes = [tag("p", str(note), cls="said", role="alert") for note in settings.notes]
    heads, opened = ("Setting", "Value", "From", ""), _name_group(key)
    shown = [
        tag(
            "details",
            tag("summary", tag("strong", group), f" {_count_set(rows)}"),
            table(heads, rows, caption=f"Settings: {group}"),
            open=group == opened,
        )
        for group, rows in groups.items()
    ]
    form = _build_form(page, settings, SETTINGS[key]) if key and page.user.rights.can_configure else None
    return PageView("Settings", tag("div", said, notes, form, shown), "settings")


def _name_group(key: str) -> str:
    group, dot, _ = key.partition(".")
    return group.replace("_", " ") if dot else "general"


def _count_set(rows: Sequence[Sequence[Node]]) -> str:
    changed = sum(row[2] != "default" for row in rows)
    return format_count(len(rows), "setting") + (f", {changed} set" if changed else "")


def _build_row(page: PageRequest, settings: Settings, key: str) -> Sequence[Node]:
    row = build_setting_row(settings, key)
    origin = str(row["origin"])
    change = tag("a", "Change", href=address("/settings", key=key), cls="button")
    return (
        (tag("code", key), tag("p", str(row["describe"]), cls="faint about")),
        format_setting(row["value"]),
        tag("span", origin.partition(" ")[0], title=origin) if origin != "default" else "default",
        change if page.user.rights.can_configure else "",
    )


def _describe(settings: Settings, key: str) -> Consent:
    value = settings.given.get(key)
    return build_consent(f"setting {key!r}", [str(value and value.value), settings.origin(SETTINGS[key])], ())


def _build_form(page: PageRequest, settings: Settings, setting: Setting[Any]) -> Html:
    row, schema = build_setting_row(settings, setting.key), setting.values.schema
    value = row["value"]
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    if setting.is_secret:
        text = ""
    choices = schema.get("enum") or ([True, False] if schema.get("type") == "boolean" else None)
    known = None
    if isinstance(choices, list):
        texts = [one if isinstance(one, str) else json.dumps(one) for one in choices]
        known = {one: one for one in texts}
    lines = 4 if schema.get("type") in {"object", "array"} else 0
    field = build_entry("value", setting.key, setting.describe, value=text, choices=known, rows=lines)
    target = partial(build_form, page.user, address("/settings"), key=setting.key,
                     digest=_describe(settings, setting.key).digest)  # fmt: skip
    reset = target(button="Back to the default", action="unset") if settings.origin(setting) != "default" else None
    return tag("article", target(field, button="Save", look="main", action="set"), reset)


async def _set(page: PageRequest) -> Node:
    key, is_set = page.get("key"), page.get("action") == "set"
    if key not in SETTINGS:
        raise CoreError(f"there is no setting {key!r}")

    def write() -> None:
        value: JsonValue = None

        def set_value(text: str, place: Sequence[str]) -> str:
            return set_member(text, place, value)

        path = user_settings_path(os.environ)
        try:
            _describe(load_settings(page.source.session.invocation.cwd, os.environ), key).check_digest(
                page.get("digest")
            )
            value = read_setting(SETTINGS[key], [page.form.get("value", "").strip()], os.path.dirname(path))
        except SettingError as exc:
            if is_set:
                raise CoreError(str(exc)) from exc
        edit_setting(path, key, set_value if is_set else remove_member, private=True)

    await to_thread.run_sync(write)
    return f"{key} is {'saved' if is_set else 'at its default'}. {_LATER}"


# -- rules ------------------------------------------------------------------------------------


async def show_rules(page: PageRequest) -> PageView:
    """Show the permission rules of the user and the project, after the action of a submitted form."""
    said = await run_action(page, {"add": _add_rule, "remove": _remove_rule})
    cwd = page.source.session.invocation.cwd
    rules, notes = await to_thread.run_sync(load_startup_rules, RuleStore(), cwd)
    rows = [
        (
            show_state(rule.effect.value),
            tag("code", str(rule)),
            rule.workspace or (rule.file if rule.origin is RuleOrigin.PROJECT else "everywhere"),
            _build_removal(page, rule) if rule.origin is RuleOrigin.USER else "",
        )
        for rule in rules
    ]
    listed = table(("Effect", "Rule", "Where", ""), rows, caption="Rules") if rows else show_nothing("No rules yet.")
    problems = [tag("p", str(note), cls="said", role="alert") for note in notes]
    return PageView("Rules", tag("div", said, problems, listed, _build_rule_form(page)), "rules")


def _build_removal(page: PageRequest, rule: Rule) -> Html | str:
    if not page.user.rights.can_configure:
        return ""
    return build_form(page.user, address("/rules"), button="Remove", action="remove", rule=json.dumps(dump_rule(rule)))


def _build_rule_form(page: PageRequest) -> Html | None:
    if not page.user.rights.can_configure:
        return None
    effects = {one.value: one.value for one in (Effect.ASK, Effect.DENY, Effect.ALLOW)}
    places = {"": "everywhere", "here": "in this project"}
    fields = (
        build_entry("effect", "Effect", choices=effects, value=page.form.get("effect", "")),
        build_entry("text", "Rule", "Such as github__*, bash(git push *), or notes__add(text=*secret*).",
                    value=page.form.get("text", ""), required=True),
        build_entry("place", "Where", choices=places),
    )  # fmt: skip
    form = build_form(page.user, address("/rules"), fields, button="Add", look="main", action="add")
    return tag("section", tag("h2", "New rule"), form)


async def _add_rule(page: PageRequest) -> Node:
    effect = page.get("effect")
    if effect not in set(Effect):
        raise CoreError(f"there is no effect {effect!r}")
    rule = parse_rule(page.get("text"), Effect(effect))
    if not isinstance(rule, Rule):
        raise CoreError(str(rule))
    cwd, is_here = page.source.session.invocation.cwd, page.get("place") == "here"
    workspace = await to_thread.run_sync(os.path.realpath, cwd) if is_here else None
    await to_thread.run_sync(RuleStore().add, [replace(rule, workspace=workspace)])
    return f"{rule.effect.value} {rule}: added. {_LATER}"


async def _remove_rule(page: PageRequest) -> Node:
    # The row itself is what was shown: a rule that has changed is another one, and stays.
    row = json.loads(page.get("rule"))
    rule = parse_rule_row(row, "") if is_json_object(row) else None
    if not isinstance(rule, Rule) or not await to_thread.run_sync(RuleStore().remove, rule):
        raise CoreError("this rule isn't there any more")
    return f"{rule.effect.value} {rule}: removed. {_LATER}"
