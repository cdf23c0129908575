"""`indus addons`: lists and diagnoses the workspace's addons, and manages consent to its addons, skills and hooks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from indusagi.core.faults import Note
from indusagi.core.text import escape_unseen
from induscode.addons.chain import call_hook
from induscode.addons.contract import AddonError, Interceptor
from induscode.addons.hooks import ProjectPart, list_project_parts
from induscode.addons.loader import (
    PROJECT_DIR,
    AddonConsentStore,
    InstalledAddon,
    describe_refusal,
    discover_addons,
    load_addon,
)
from induscode.cli.listing import Listing
from induscode.cli.output import (
    as_json,
    ask_consent,
    build_unknown_name,
    can_ask_user,
    digest_option,
    print_notes,
    write_json,
)
from induscode.cli.signals import run_until_signal
from induscode.cli.terminal import print_line, print_status, print_text
from induscode.commands.groups import CommandGroup, LazyCommand
from induscode.launch.options import define_command, read_cwd

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from induscode.addons.loader import ProjectAddon
    from induscode.core.consent import ConsentState

_DECLINED = 1
_FAULT = 1
_STATES: dict[ConsentState, str] = {"trusted": "trusted", "unknown": "needs consent", "changed": "changed"}


@click.command(
    cls=CommandGroup,
    commands={
        "list": LazyCommand("list the addons in their order, with their states", ":list_"),
        "trust": LazyCommand("consent to addons, skills and hooks of the project", ":trust"),
        "untrust": LazyCommand("revoke that consent", ":untrust"),
        "doctor": LazyCommand("load the addons, and say what is wrong with them", ":doctor"),
    },
    default="list",
)
def command() -> None:
    """List, trust and examine addons, skills and hooks. Without a command: list."""


def _describe(source: InstalledAddon | ProjectPart) -> JsonObject:
    if isinstance(source, InstalledAddon):
        return {"name": source.name, "source": source.source, "state": "installed", "entry": source.entry.value}
    digest = source.describe().digest
    facts = {"name": source.label, "source": "project", "state": _STATES[source.consent]}
    return {**facts, "file": source.file, "digest": digest}


@define_command("list", "--cwd")
@as_json
def list_(context: click.Context, *, as_json: bool) -> int:
    """List the addons in the order in which they see calls, then skills and hooks, without loading them."""
    cwd, notes = read_cwd(context), list[Note]()
    parts = list_project_parts(cwd, notes)
    rows = [_describe(source) for source in (*discover_addons(cwd).installed, *parts)]
    print_notes(notes)
    return Listing(
        "addons",
        rows,
        ("NAME", "SOURCE", "STATE", "CODE"),
        lambda row: (row["name"], row["source"], row["state"], row.get("file") or row.get("entry")),
        after={"notes": [str(note) for note in notes]},
        empty="There are no addons: docs/guides/addons.md shows how one is written.",
    ).show(as_json=as_json)


@define_command("trust", "--cwd")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--yes", is_flag=True, help="Consent to the named addons without a question.")
@digest_option
@as_json
def trust(context: click.Context, names: tuple[str, ...], *, yes: bool, digests: tuple[str, ...], as_json: bool) -> int:
    """Consent to addons, skills and hooks of the project: those named, or all without consent.

    Shows the code or text first. Exit code 1 if you decline one.
    """
    cwd, notes = read_cwd(context), list[Note]()
    parts = list_project_parts(cwd, notes)
    sources = [_find_part(parts, cwd, name) for name in dict.fromkeys(names)] if names else parts
    waiting = [source for source in sources if source.consent != "trusted"]
    if yes and not names:
        raise click.UsageError("--yes takes the names of the addons to consent to")
    if waiting and not yes and (as_json or not can_ask_user()):
        message = "There is no terminal for a question: read the code, then indus addons trust --yes"
        raise click.UsageError(f"{message} {' '.join(source.label for source in waiting)}")
    print_notes(notes)
    trusted = [source for source in waiting if _ask_consent(source, yes=yes, digests=digests, quiet=as_json)]
    if as_json:
        rows: list[JsonObject] = [
            {
                "name": source.label,
                "file": source.file,
                "digest": source.describe().digest,
                "trusted": source in trusted or source not in waiting,
            }
            for source in sources
        ]
        write_json({"addons": [*rows]})
    elif not waiting:
        print_line("Nothing of this project waits for consent.")
    return 0 if len(trusted) == len(waiting) else _DECLINED


def _find_part(parts: Sequence[ProjectPart], cwd: str, name: str) -> ProjectPart:
    source = next((one for one in parts if one.label == name), None)
    if source is not None:
        return source
    if name in {addon.name for addon in discover_addons(cwd).installed}:
        raise click.UsageError(f"Addon {name!r} is installed, not a file of the project: it needs no consent")
    raise build_unknown_name(f"This project has no addon, skill or hooks {name!r}", name, [one.label for one in parts])


def _ask_consent(source: ProjectPart, *, yes: bool, digests: Sequence[str], quiet: bool) -> bool:
    """Show the code or text and record consent to exactly that."""
    if not yes:
        print_text("\n".join(map(escape_unseen, source.text.expandtabs(4).split("\n"))))
    question = source.describe()
    if not ask_consent(
        question, f"Trust {source.label} and use it in this project?", yes=yes, digests=digests, quiet=quiet
    ):
        print_status(f"{source.label}: not trusted")
        return False
    AddonConsentStore().approve(source.file, question.digest)
    if not quiet:
        print_line(f"{source.label}: trusted as it is")
    return True


@define_command("untrust", "--cwd")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@as_json
def untrust(context: click.Context, names: tuple[str, ...], *, as_json: bool) -> int:
    """Revoke the consent to the named addons, skills and hooks, or to all of the project."""
    cwd = read_cwd(context)
    parts = list_project_parts(cwd, [])
    files = {source.label: source.file for source in parts}
    store = AddonConsentStore()
    rows: list[JsonObject] = []
    for name in dict.fromkeys(names or files):
        # The user may have consented to a file that's gone.
        revoked = store.revoke(files.get(name, os.path.join(cwd, PROJECT_DIR, f"{name}.py")))
        if not revoked:
            _find_part(parts, cwd, name)
        rows.append({"name": name, "revoked": revoked})
        if not as_json and revoked:
            print_line(f"{name}: no longer trusted")
        elif not as_json:
            print_status(f"{name}: there was no consent to it")
    if as_json:
        write_json({"addons": [*rows]})
    return 0


@define_command("doctor", "--cwd")
@as_json
def doctor(context: click.Context, *, as_json: bool) -> int:
    """Load every addon with consent, and report its cards, its hooks and its faults.

    Exit code 1 if one of them cannot be loaded.
    """
    cwd = read_cwd(context)
    found = discover_addons(cwd)
    rows: list[JsonObject] = []

    async def work(_: CancelToken) -> int:
        for source in (*found.installed, *found.project):
            row = await _examine(source, cwd)
            rows.append(row)
        return _FAULT if any("fault" in row for row in rows) else 0

    code = run_until_signal(work)
    print_notes(found.notes)
    if as_json:
        write_json({"addons": [*rows], "notes": [str(note) for note in found.notes]})
        return code
    for row in rows:
        print_line(f"{row['name']} ({row['source']}): {row['state']}")
        for key in ("fault", "remedy", "hooks", "cards"):
            value = row.get(key)
            if value:
                print_line(f"  {key}: {', '.join(map(str, value)) if isinstance(value, list) else value}")
    if not rows:
        print_line("There are no addons.")
    return code


async def _examine(source: InstalledAddon | ProjectAddon, cwd: str) -> JsonObject:
    """Load and close a trusted addon, and build its row."""
    from induscode.deck.catalog import has_capability  # noqa: PLC0415 — imports the cards

    refusal = describe_refusal(source)
    if refusal is not None:
        return {**_describe(source), "remedy": refusal.remedy}
    try:
        addon = await load_addon(source, cwd)
        if addon.close is not None:
            await call_hook(addon.close, deadline_s=addon.deadline_s)
    except AddonError as exc:
        return {**_describe(source), "state": "faulted", "fault": str(exc)}
    return {
        **_describe(source),
        "required": addon.required,
        "deadline_s": addon.deadline_s,
        "hooks": [
            f"{type(one).__name__}.{name}"
            for one in addon.interceptors
            for name in ("before", "after")
            if getattr(type(one), name) is not getattr(Interceptor, name)
        ],
        "cards": [
            f"{card.name} (left out: a native tool has this name)" if has_capability(card.name) else card.name
            for card in addon.cards
        ],
    }
