"""Changing a server's row: its variables, sandbox, tools and sign-in; switching it on or off, and removing it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from indusagi.capabilities.sandbox.profile import PROFILES, format_profile
from indusagi.core.faults import CoreError
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.interop.auth.secrets import SecretFiles
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from induscode.deck.mcp.store.pins import forget_row
from induscode.gateway.page.html import (
    Html,
    PageError,
    PageView,
    address,
    build_entry,
    build_form,
    build_mark,
    link,
    run_action,
    show_facts,
    show_text,
    table,
    tag,
)
from induscode.servers.config.rows import InvalidRowError
from induscode.servers.config.trust import describe_row, show_value
from induscode.servers.edits import remove_row
from induscode.servers.plan import (
    HEADER,
    VARIABLE,
    digest_place,
    find_own_file,
    find_switched_off,
    switch_server,
    write_fields,
)
from induscode.servers.sign_in import read_sign_in, sign_out_of_server

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from induscode.gateway.page.access import PageRequest
    from induscode.gateway.page.html import Node
    from induscode.servers.config.rows import ServerRow

_TOOL: Final = "tool."
"""Prefix of the fields of tools that are on."""
_IN_FILE: Final = "file"


async def show_row(page: PageRequest) -> PageView:
    """Show the settings of a server, after the action of a submitted form."""
    name, changing = page.get("name"), _Changing(page)
    actions = {"set": changing.set_variable, "unset": changing.unset, "sandbox": changing.choose_sandbox,
               "tools": changing.choose_tools, "switch": changing.switch, "remove": changing.remove,
               "sign-out": changing.sign_out}  # fmt: skip
    said = await run_action(page, actions)
    if changing.target:
        return PageView("", tag("div"), "servers", target=changing.target)
    row = next((row for row in page.source.plan.rows if row.id == name), None)
    if row is None:
        invocation = page.source.session.invocation
        off = {one.name: one for one in await to_thread.run_sync(find_switched_off, invocation)}
        if name not in off:
            raise PageError(f"There is no server {name!r}")
        facts = show_facts({"State": "off", "Configured": tag("code", off[name].file)})
        return PageView(f"Change {name}", tag("div", said, facts, _build_end(page, name, "", is_on=False)), "servers")
    consent = await to_thread.run_sync(describe_row, row)
    content = tag(
        "div",
        said,
        tag("p", link(f"Back to {name}", "/server", name=name)),
        _show_variables(page, row, consent.digest),
        _show_sandbox(page, row, consent.digest),
        _show_tools(page, row, consent.digest),
        await _show_sign_in(page, row),
        tag("h2", "The row"),
        show_text("\n".join(consent.details)),
        _build_end(page, name, consent.digest, is_on=True),
    )
    return PageView(f"Change {name}", content, "servers")


class _Changing:
    """The actions of one request. Each is bound to the row that was shown."""

    def __init__(self, page: PageRequest) -> None:
        self._page, self._source, self._name = page, page.source, page.get("name")
        self.target = ""

    def _find(self) -> ServerRow:
        row = self._source.find_row(self._name)
        describe_row(row).check_digest(self._page.form.get("digest", ""))
        return row

    async def _write(self, said: str, **fields: JsonValue) -> str:
        before = self._source.plan
        try:
            await to_thread.run_sync(lambda: write_fields(self._find(), fields))
        except InvalidRowError as exc:
            raise CoreError(f"server {self._name!r}: {exc}") from exc
        await self._source.wait_for_change(before)
        return said

    async def set_variable(self, page: PageRequest) -> Node:
        """Give a variable or header a value, which is kept among the secrets unless the user wants it in the file."""
        name, value = page.get("variable").strip(), page.form.get("value", "")

        def change() -> JsonObject:
            row, text = self._find(), value
            valid = VARIABLE if isinstance(row.config, StdioServerConfig) else HEADER
            if valid.fullmatch(name) is None or not value:
                raise CoreError(f"{name!r} can't be set: it takes a name of letters, digits and '_', and a value")
            if page.get("keep") != _IN_FILE and "${" not in value:
                SecretFiles().set(f"{row.id}.{name}", value)
                text = f"${{keyring:{row.id}.{name}}}"
            return set_variable(row, name, text)

        return await self._write(f"{name} is set.", **await to_thread.run_sync(change))

    async def unset(self, page: PageRequest) -> Node:
        """Remove a variable or header from the row. A secret stays in the store."""
        name, row = page.get("variable"), await to_thread.run_sync(self._find)
        key = _name_map(row)
        return await self._write(f"{name} is removed.", **{key: _read_map(row, key, without=name) or None})

    async def choose_sandbox(self, page: PageRequest) -> Node:
        """Change what its process may touch."""
        return await self._write("It restarts in this sandbox.", sandbox=page.get("sandbox") or None)

    async def choose_tools(self, page: PageRequest) -> Node:
        """Switch single tools on and off."""
        row = await to_thread.run_sync(self._find)
        shown = [str(name) for name in json.loads(page.get("shown"))]
        on = [name for name in shown if f"{_TOOL}{name}" in page.form]
        said = f"{len(on)} of {len(shown)} tools are on."
        if row.config.include_tools is not None:
            return await self._write(said, include_tools=[*on])
        return await self._write(said, exclude_tools=[name for name in shown if name not in on] or None)

    async def switch(self, page: PageRequest) -> Node:
        """Switch it on or off; its row stays in the file."""
        cwd, is_on = self._source.session.invocation.cwd, page.get("on") == "1"
        said = await to_thread.run_sync(lambda: switch_server(cwd, self._name, None, on=is_on))
        await self._source.wait_for_rows([self._name] if is_on else [], gone=() if is_on else [self._name])
        self.target = address("/server", name=self._name) if is_on else address("/servers")
        return said

    async def remove(self, _: PageRequest) -> Node:
        """Remove it from our file, and the consent to it. A later server of its name is a new one."""
        cwd, mcp = self._source.session.invocation.cwd, self._source.session.mcp

        def work() -> str:
            if self._page.form.get("digest"):
                self._find()
            path, scope = find_own_file(cwd, self._name, None)
            remove_row(self._name, path, scope)
            return path

        path = await to_thread.run_sync(work)
        await forget_row(self._source.session.store, lambda: mcp.journal, self._name, digest_place(path, self._name))
        await self._source.wait_for_rows((), gone=[self._name])
        self.target = address("/servers")
        return "Removed."

    async def sign_out(self, _: PageRequest) -> Node:
        """Clear the sign-in to it."""
        confirmed = await sign_out_of_server(self._source.plan.configs[self._name])
        rest = "" if confirmed else " Its issuer has not confirmed it: look at your account there."
        return f"Signed out of {self._name}.{rest}"


def _name_map(row: ServerRow) -> str:
    if not isinstance(row.config, StdioServerConfig):
        return "headers"
    return next((key for key in ("env", "environment") if key in row.written), "env")


def _read_map(row: ServerRow, key: str, without: str = "") -> JsonObject:
    values = row.written.get(key)
    return {name: value for name, value in values.items() if name != without} if is_json_object(values) else {}


def set_variable(row: ServerRow, name: str, text: str) -> JsonObject:
    """Return the fields of a row that change if a variable gets a value.

    A variable that the row refers to is replaced where it stands; any other one is added to its variables.
    """
    written = f"${{{name}}}"
    changed: JsonObject = {
        key: json.loads(compact_json(value).replace(written, compact_json(text)[1:-1]))
        for key, value in row.written.items()
        if written in compact_json(value)
    }
    key = _name_map(row)
    return changed or {key: {**_read_map(row, key), name: text}}


# -- what it looks like -------------------------------------------------------------------------


def _show_variables(page: PageRequest, row: ServerRow, digest: str) -> Html:
    target, what = address("/row", name=row.id), "header" if _name_map(row) == "headers" else "variable"
    rows = [
        (
            tag("code", name),
            show_value(str(value), row.expansion) or "(a value is set)",
            build_form(page.user, target, button="Remove", action="unset", variable=name, digest=digest)
            if page.user.rights.can_configure else "",
        )
        for name, value in _read_map(row, _name_map(row)).items()
    ]  # fmt: skip
    fields = (
        build_entry("variable", f"Name of the {what}", value=page.query.get("set", ""), required=True),
        build_entry("value", "Value", "It's never shown again.", kind="password", required=True),
        build_entry("keep", "Keep it", choices={"": "among my secrets", _IN_FILE: "in the file, readable"}),
    )
    form = build_form(page.user, target, fields, button="Set", look="main", action="set", digest=digest)
    listed = table((what.capitalize(), "Value", ""), rows, caption=f"{what.capitalize()}s") if rows else None
    shown = form if page.user.rights.can_configure else None
    return tag("section", tag("h2", f"{what.capitalize()}s"), listed, shown, id="variables")


def _show_sandbox(page: PageRequest, row: ServerRow, digest: str) -> Html | None:
    if not isinstance(row.config, StdioServerConfig) or not page.user.rights.can_configure:
        return None
    profile = row.config.sandbox
    present = format_profile(profile)
    about = "off: it may do whatever you may" if profile is None else profile.describe()
    choices = {**{name: name for name in PROFILES}, "off": "off"}
    chosen = present if isinstance(present, str) else "" if profile is not None else "off"
    if chosen == "":
        choices = {"": "as in the row", **choices}
    field = build_entry("sandbox", "What its process may touch", about, choices=choices, value=chosen)
    form = build_form(page.user, address("/row", name=row.id), field, button="Change", action="sandbox", digest=digest)
    return tag("section", tag("h2", "Sandbox"), form, id="sandbox")


def _show_tools(page: PageRequest, row: ServerRow, digest: str) -> Html | None:
    mcp, off = page.source.session.mcp, row.config.exclude_tools
    listed = [card.ref.name for card in mcp.capabilities if card.ref.server == row.id]
    waiting = [tool.ref.name for tool in mcp.disabled if tool.ref.server == row.id and tool.ref.kind == "tool"]
    names = [*dict.fromkeys((*listed, *waiting, *off))]
    if not names or not page.user.rights.can_configure:
        return None
    marks = [tag("li", build_mark(f"{_TOOL}{name}", tag("code", name), marked=name not in off)) for name in names]
    shown = compact_json([*names])
    form = build_form(page.user, address("/row", name=row.id), tag("ul", marks, cls="marks"), button="Save",
                      action="tools", digest=digest, shown=shown)  # fmt: skip
    return tag("section", tag("h2", "Tools"), form, id="tools")


async def _show_sign_in(page: PageRequest, row: ServerRow) -> Html | None:
    config: ServerConfig | None = page.source.plan.configs.get(row.id)
    facts = None if config is None else await read_sign_in(config)
    if facts is None or facts.state == "not signed in":
        return None
    form = build_form(page.user, address("/row", name=row.id), button="Clear the sign-in", action="sign-out")
    shown = show_facts({"Account": facts.account, "Lasts": facts.problem or facts.format_expiry()})
    return tag("section", tag("h2", "Sign-in"), shown, form if page.user.rights.can_configure else None)


def _build_end(page: PageRequest, name: str, digest: str, *, is_on: bool) -> Html | None:
    if not page.user.rights.can_configure:
        return None
    target = address("/row", name=name)
    switch = build_form(page.user, target, button="Switch off" if is_on else "Switch on", action="switch",
                        on="" if is_on else "1", look="" if is_on else "main")  # fmt: skip
    remove = build_form(page.user, target, button="Remove the server", look="danger", action="remove", digest=digest)
    return tag("div", switch, remove, cls="actions")
