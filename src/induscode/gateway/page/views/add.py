"""Adding servers: by a command or an address, from the registry, and from the files of other clients.

A new server is planned first and shown in full. The form that adds it has the digest of what's shown, and names a plan
that only this process knows, so that values of variables never go back to the browser.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio
from anyio import to_thread

from indusagi.capabilities.sandbox.profile import PROFILES
from indusagi.core.faults import CoreError
from indusagi.core.text import format_count
from indusagi.interop.auth.secrets import SecretFiles
from induscode.boot.trial import open_trial, pin_definitions
from induscode.gateway.page.drafts import Draft
from induscode.gateway.page.html import (
    Html,
    PageView,
    address,
    build_consent,
    build_entry,
    build_form,
    build_mark,
    build_search,
    run_action,
    shorten,
    shorten_path,
    show_nothing,
    table,
    tag,
)
from induscode.launch.settings import REGISTRY_URL
from induscode.servers.clients import CLIENTS, PROGRAMS
from induscode.servers.clients.foreign import Candidate, compare_servers, copy_servers, discover_foreign
from induscode.servers.config.rows import ServerRow
from induscode.servers.config.trust import describe_row
from induscode.servers.config.writer import own_config_path, read_own_config
from induscode.servers.edits import add_row, choose_sandbox, resolve_paths
from induscode.servers.plain_secrets import SecretMove, plan_move
from induscode.servers.plan import build_fields, digest_place, parse_server_row, suggest_name

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from induscode.boot.trial import Trial
    from induscode.gateway.page.access import PageRequest
    from induscode.gateway.page.html import Node

_MAX_DRAFTS: Final = 32
_TRIAL_S: Final = 90.0
_MAX_FOUND: Final = 20
_MARK: Final = "mark."
"""Prefix of the fields that mark servers to import, by the digest of what's shown."""


async def show_add(page: PageRequest) -> PageView:
    """Show the ways to add a server, or a planned one, after the action of a submitted form."""
    adding = _Adding(page)
    actions = {"plan": adding.plan, "choose": adding.choose, "try": adding.try_it, "add": adding.add}
    said = await run_action(page, {**actions, "import": adding.import_marked})
    if adding.target:
        return PageView("", tag("div"), "servers", target=adding.target)
    if adding.draft is not None:
        return PageView("Add a server", tag("div", said, await adding.show_draft(adding.draft)), "servers")
    forms = (await _show_foreign(page), _show_command(page), await _show_registry(page))
    return PageView("Add a server", tag("div", said, forms if page.user.rights.can_configure else None), "servers")


class _Adding:
    """The actions of one request."""

    def __init__(self, page: PageRequest) -> None:
        self._page, self._source = page, page.source
        self._cwd = page.source.session.invocation.cwd
        self._path = own_config_path("user", self._cwd)
        self.draft: Draft | None = None
        self.trial: Trial | None = None
        self.target = ""

    async def plan(self, page: PageRequest) -> Node:
        """Plan the server that a form describes."""
        try:
            words = shlex.split(page.get("target").strip())
        except ValueError as exc:
            raise CoreError(f"the command isn't complete: {exc}") from exc
        lines = [line.strip() for line in page.get("variables").splitlines() if line.strip()]
        is_url = bool(words) and "://" in words[0]
        fields = build_fields(
            resolve_paths(words, self._cwd), headers=lines if is_url else (), env=() if is_url else lines
        )
        return await self._keep(page.get("name").strip() or suggest_name(words), fields, page.get("sandbox"))

    async def choose(self, page: PageRequest) -> Node:
        """Plan the server of a registry's entry."""
        from induscode.servers.registry import RegistryClient, build_installation  # noqa: PLC0415 — the web client

        url = self._source.session.invocation.settings.get(REGISTRY_URL)
        name = page.get("server")
        server = await RegistryClient(url).read_server(name, page.get("version"))
        made = build_installation(server, page.get("kind") or None, {})
        local = re.sub(r"[^A-Za-z0-9_-]+", "-", name.rpartition("/")[2]).strip("-")
        about = [f"package: {made.package}", f"verified: {made.verification}", f"from: {server.name} of {url}"]
        if made.needed:
            about.append(f"set before it starts: {', '.join(made.needed)}")
        return await self._keep(local, made.fields, "", about, made.warnings)

    async def _keep(
        self, name: str, fields: JsonObject, sandbox: str, about: Sequence[str] = (), warnings: Sequence[str] = ()
    ) -> Node:
        def build() -> tuple[Draft, str]:
            present = read_own_config(self._path)
            if name in present.rows():
                raise CoreError(f"there's a server {name!r} already: choose another name")
            chosen, line = choose_sandbox(name, fields, sandbox or None, self._cwd, None)
            why = [line] if "sandbox" not in chosen and line else []
            draft = Draft(name=name, fields=chosen, path=self._path, about=[*about, *why], warnings=warnings)
            return draft, draft.describe().digest

        self.draft, digest = await to_thread.run_sync(build)
        while len(self._source.drafts) >= _MAX_DRAFTS:
            del self._source.drafts[next(iter(self._source.drafts))]
        self._source.drafts[digest] = self.draft
        return "Check what it runs, then add it."

    def _find(self) -> Draft:
        draft = self._source.drafts.get(self._page.form.get("digest", ""))
        if draft is None:
            raise CoreError("what you looked at is too old: enter it again")
        self.draft = draft
        return draft

    async def try_it(self, _: PageRequest) -> Node:
        """Start the server in an empty home, and show its tools."""
        draft = self._find()
        # Without a sign-in, which would be stored.
        row = replace(parse_server_row(draft.name, draft.fields, draft.path, "user"), auth={})
        names = {card.ref.name: card.ref.server for card in self._source.session.mcp.capabilities}
        try:
            with anyio.fail_after(_TRIAL_S):
                async with open_trial(row.resolve(os.environ)) as trial:
                    findings = trial.review(names)
        except TimeoutError:
            raise CoreError(f"it didn't list its tools within {_TRIAL_S:g} seconds") from None
        self.trial = trial
        tried = replace(draft, definitions=trial.definitions, warnings=[*draft.warnings, *map(str, findings)])
        self.draft = tried
        self._source.drafts[(await to_thread.run_sync(tried.describe)).digest] = tried
        return f"It started in {trial.start_ms} ms, and nothing of it was kept."

    async def add(self, page: PageRequest) -> Node:
        """Add the server as it was shown."""
        draft, digest = self._find(), page.get("digest")

        def check() -> tuple[ServerRow, SecretMove | None]:
            # A program or a file of the project may have changed since.
            draft.describe().check_digest(digest)
            move = draft.plan_move()
            if move is not None:
                move.store(SecretFiles())
            return draft.row, move

        row, move = await to_thread.run_sync(check)
        if draft.definitions is not None:
            store, config = self._source.session.store, row.resolve(os.environ)
            await pin_definitions(store, config, draft.definitions, digest_place(draft.path, draft.name))
        fields = draft.fields if move is None else move.build_row()
        await to_thread.run_sync(add_row, draft.name, fields, draft.path, "user")
        del self._source.drafts[digest]
        await self._source.wait_for_rows([draft.name])
        self.draft, self.target = None, address("/server", name=draft.name)
        return "Added."

    async def import_marked(self, page: PageRequest) -> Node:
        """Copy the servers with a mark, each as it was shown."""
        marked = {key.removeprefix(_MARK) for key in page.form if key.startswith(_MARK)}

        def copy() -> Sequence[str]:
            found = {describe_row(one.server.row).digest: one for one in find_importable(self._cwd)}
            if not marked:
                raise CoreError("no server has a mark")
            if not marked <= found.keys():
                raise CoreError("a file has changed since you looked: look at it again")
            store, servers = SecretFiles(), [found[digest].server for digest in found if digest in marked]
            taken = store.list_rows()
            for index, server in enumerate(servers):
                move = plan_move(server.row.id, server.fields, taken)
                if move is not None:
                    move.store(store)
                    servers[index] = replace(server, fields=move.build_row())
            return [row.id for row in copy_servers(self._path, "user", servers)]

        names = await to_thread.run_sync(copy)
        await self._source.wait_for_rows(names)
        self.target = address("")
        return f"Imported: {', '.join(names)}."

    # -- what it looks like -----------------------------------------------------------------

    async def show_draft(self, draft: Draft) -> Html:
        """Show a planned server in full, with the forms that try and add it."""
        consent, target = await to_thread.run_sync(draft.describe), address("/add")
        tools = None
        if self.trial is not None:
            rows = [(tool.ref.name, shorten(tool.descriptor.description)) for tool in self.trial.tools]
            counted = f"{format_count(len(rows), 'tool')}, about {self.trial.tokens:,} tokens"
            tools = (tag("h2", counted), table(("Tool", "Description"), rows, caption="Tools") if rows else None)
        button = "Add it" if draft.definitions is None else "Add it with these tools"
        tries = build_form(
            self._page.user, target, button="Try it first", action="try", digest=consent.digest
        ) if draft.definitions is None else None  # fmt: skip
        return tag(
            "div",
            tools,
            build_consent(self._page.user, target, consent, button=button, action="add"),
            tag("div", tries, tag("a", "Change it", href=target, cls="button"), cls="actions"),
        )


def _show_command(page: PageRequest) -> Html:
    profiles = {"": "standard, where this machine can", **{name: name for name in PROFILES}, "off": "off"}
    fields = (
        build_entry("target", "Command or URL", "Such as npx -y @scope/server, or https://example.org/mcp",
                    value=page.form.get("target", ""), required=True),
        build_entry("name", "Name", "Comes before the names of its tools. Optional.", value=page.form.get("name", "")),
        build_entry("variables", "Variables or headers",
                    "One per line: NAME=VALUE for a command, NAME: VALUE for a URL. Secrets are stored apart.", rows=2),
        build_entry("sandbox", "Sandbox of a command", choices=profiles, value=page.form.get("sandbox", "")),
    )  # fmt: skip
    form = build_form(page.user, address("/add"), fields, button="Continue", look="main", action="plan")
    return tag("section", tag("h2", "By command or URL"), form, id="command")


def find_importable(cwd: str) -> Sequence[Candidate]:
    """Find the servers of other clients' own files that aren't here yet. Blocks."""
    servers, _ = discover_foreign(PROGRAMS, cwd, os.environ)
    ours = read_own_config(own_config_path("user", cwd)).rows()
    # Those of a project's files are servers of a session there anyway, and wait for consent.
    own = [server for server in servers if server.origin.scope == "user"]
    return [one for one in compare_servers(own, ours) if not one.conflict]


def name_programs(found: Sequence[Candidate]) -> str:
    """Name the clients that have these servers: `Claude Code and Cursor`."""
    titles = {client.program: client.title for client in CLIENTS.values()}
    names = [titles.get(name, name) for name in dict.fromkeys(one.server.origin.dialect for one in found)]
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


async def _show_foreign(page: PageRequest) -> Html | None:
    found = await to_thread.run_sync(find_importable, page.source.session.invocation.cwd)
    if not found:
        return None
    rows = await to_thread.run_sync(lambda: [tag("li", _build_foreign(one)) for one in found])
    text = "Their files stay as they are. Secrets in plain text are stored apart here."
    form = build_form(page.user, address("/add"), tag("ul", rows, cls="marks"), button="Import", look="main",
                      action="import")  # fmt: skip
    return tag("section", tag("h2", f"From {name_programs(found)}"), tag("p", text), form, id="import")


def _build_foreign(candidate: Candidate) -> Html:
    """Build the check mark of a server to import, with all that it runs."""
    row, file = candidate.server.row, shorten_path(candidate.server.origin.file)
    consent = describe_row(row)
    shown = tag("code", "\n".join(consent.details), cls="block")
    return build_mark(_MARK + consent.digest, (tag("strong", row.id), " ", tag("span", file, cls="faint"), shown))


async def _show_registry(page: PageRequest) -> Html:
    query = page.query.get("q", "").strip()
    found = None
    if query:
        from induscode.servers.registry import RegistryClient  # noqa: PLC0415 — the web client

        url = page.source.session.invocation.settings.get(REGISTRY_URL)
        try:
            servers = await RegistryClient(url).search(query.split(), _MAX_FOUND)
        except CoreError as exc:
            found = tag("p", str(exc), role="alert", cls="said")
        else:
            rows = [
                (
                    one.name,
                    one.version,
                    one.description,
                    build_form(page.user, address("/add"), button="Choose", action="choose", server=one.name,
                               version=one.version),
                )
                for one in servers
                if one.kinds
            ]  # fmt: skip
            heads = ("Server", "Version", "Description", "")
            found = table(heads, rows, caption="Servers of the registry") if rows else show_nothing("Nothing found.")
    search = build_search("/add", "From the registry", query)
    return tag("section", tag("h2", "From the registry"), search, found, id="registry")
