"""Slash commands that send text: custom command files, server prompts (`/server:prompt`), and `/memory`."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.text import cut_text, format_count
from indusagi.interop.protocol_bridge.contract import ProtocolFault, RemoteToolRef
from induscode.addons.skills import read_fields
from induscode.cli.terminal import escape_controls
from induscode.conversations.agents.files import find_folders, read_markdown
from induscode.conversations.mentions import open_server_content
from induscode.deck.cards.memory import LARGEST_BYTES, MEMORY_NAME, append_note_line
from induscode.deck.mcp.content import ContentRefused, find_text
from induscode.frontends.terminal.slash import SlashCommand, SlashError, SlashHost, confirm, split_words

if TYPE_CHECKING:
    from induscode.conversations.conversation import Conversation
    from induscode.deck.mcp.capability import BridgeCapability


# -- custom commands --------------------------------------------------------------------------
#
# User files live in `$XDG_CONFIG_HOME/indus/commands`, project files in `.indusvx/commands`; `a/b.md` is `/a:b`. A file
# may start with front matter: `description` and `argument-hint` between two `---` lines. In its text, `$ARGUMENTS`
# expands to the rest of the line and `$1` to `$9` to its words. A file runs nothing: the command sends its text to the
# model, and shows it as sent.


MAX_FILES = 200
_MAX_ENTRIES = 2_000
_MAX_DEPTH = 4
_MAX_DESCRIPTION = 100
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_PLACE = re.compile(r"\$(?:ARGUMENTS\b|([1-9])(?!\d))")


def load_custom_commands(cwd: str, taken: Collection[str]) -> tuple[Mapping[str, SlashCommand], Sequence[str]]:
    """Load the user's commands, then the project's, with notes about skipped files. Blocks: call it in a thread.

    Names in `taken` and names of user files take precedence.
    """
    commands: dict[str, SlashCommand] = {}
    notes: list[str] = []
    for origin, folder in find_folders(cwd, "commands", notes):
        for path in _list_files(folder, notes):
            parts = os.path.relpath(path, folder).removesuffix(".md").split(os.sep)
            name = ":".join(parts)
            if not all(map(_NAME.fullmatch, parts)):
                notes.append(f"{path}: left out: a name has letters, digits, '.', '_' and '-'")
            elif name in taken:
                notes.append(f"{path}: left out: /{name} is a command of the session")
            elif name in commands:
                notes.append(f"{path}: left out: you have a command /{name} of your own")
            else:
                try:
                    commands[name] = _read_command(name, path, folder, origin)
                except OSError as exc:
                    notes.append(f"{path}: left out: {exc.strerror}")
    return commands, notes


def _list_files(folder: str, notes: list[str]) -> Sequence[str]:
    """List Markdown files below a directory, skipping symlinked directories."""
    entries, files = 0, list[str]()
    for path, folders, names in os.walk(folder):
        entries += len(folders) + len(names)
        files += [os.path.join(path, name) for name in sorted(names) if name.endswith(".md")]
        if entries > _MAX_ENTRIES or len(files) > MAX_FILES:
            notes.append(f"{folder}: it has more files than the {MAX_FILES} that are read")
            break
        folders.sort()
        if path.count(os.sep) - folder.count(os.sep) == _MAX_DEPTH - 1:
            folders.clear()
    return files[:MAX_FILES]


def _read_command(name: str, path: str, folder: str, origin: str) -> SlashCommand:
    """Read one file; `OSError` if it's unreadable, too large, or outside its directory."""
    front, body = read_markdown(path, folder)
    values = read_fields(front or "")
    description = values.get("description") or body.partition("\n")[0].lstrip("# ")
    return SlashCommand(
        name=name,
        usage=cut_text(values.get("argument-hint", ""), _MAX_DESCRIPTION),
        describe=f"{cut_text(description, _MAX_DESCRIPTION)} ({origin})",
        run=partial(_send_file, body),
    )


def list_skill_commands(conversation: Conversation, taken: Collection[str]) -> Mapping[str, SlashCommand]:
    """List a command for each skill whose name isn't taken."""
    return {
        name: SlashCommand(
            name=name,
            usage=cut_text(skill.fields.get("argument-hint", ""), _MAX_DESCRIPTION),
            describe=f"{cut_text(skill.description, _MAX_DESCRIPTION)} (skill)",
            run=partial(_send_skill, name),
        )
        for name, skill in conversation.skills.usable.items()
        if name not in taken and skill.fields.get("user-invocable", "").lower() != "false"
    }


async def _send_skill(name: str, host: SlashHost, rest: str) -> None:
    text = await to_thread.run_sync(host.conversation.skills.render, name)
    host.prompt(expand_arguments(text, rest))


async def _send_file(body: str, host: SlashHost, rest: str) -> None:
    if not body:
        raise SlashError("its file has no text")
    host.prompt(expand_arguments(body, rest))


def expand_arguments(body: str, rest: str) -> str:
    """Insert the arguments into a text, or append them if it has no placeholder."""
    if _PLACE.search(body) is None:
        return f"{body}\n\n{rest}" if rest else body
    words = split_words(rest) if any(match[1] for match in _PLACE.finditer(body)) else []

    def expand(match: re.Match[str]) -> str:
        if match[1] is None:
            return rest
        number = int(match[1])
        return words[number - 1] if number <= len(words) else ""

    return _PLACE.sub(expand, body)


# -- server prompts ---------------------------------------------------------------------------
#
# https://modelcontextprotocol.io/specification/2025-11-25/server/prompts. Arguments are `name=value`, or values in the
# order the prompt declares them.


def list_prompt_commands(conversation: Conversation) -> Mapping[str, SlashCommand]:
    """List the current prompts of a conversation's servers."""
    commands: dict[str, SlashCommand] = {}
    for item in open_server_content(conversation.session).list_items("prompt"):
        name = f"{item.ref.server}:{item.ref.name}"
        if not any(map(str.isspace, name)):
            arguments = _list_arguments(item)
            about = cut_text(" ".join(item.description.split()), _MAX_DESCRIPTION)
            commands[name] = SlashCommand(
                name=name,
                usage=" ".join(one if required else f"[{one}]" for one, required in arguments),
                describe=f"{about} (server {item.ref.server})",
                run=partial(_send_prompt, item.ref, arguments),
            )
    return commands


def _list_arguments(item: BridgeCapability) -> Sequence[tuple[str, bool]]:
    rows: JsonValue = item.raw.get("arguments")
    found = filter(is_json_object, rows if isinstance(rows, list) else ())
    return [(name, row.get("required") is True) for row in found if isinstance(name := row.get("name"), str)]


async def _send_prompt(ref: RemoteToolRef, arguments: Sequence[tuple[str, bool]], host: SlashHost, rest: str) -> None:
    names = [name for name, _ in arguments]
    given: JsonObject = {}
    for word in split_words(rest):
        key, mark, value = word.partition("=")
        if mark and key in names:
            given[key] = value
        else:
            free = [name for name in names if name not in given]
            if not free:
                raise SlashError(f"/{ref.server}:{ref.name} takes: {' '.join(names) or 'no arguments'}")
            given[free[0]] = word
    missing = [name for name, required in arguments if required and name not in given]
    if missing:
        raise SlashError(f"/{ref.server}:{ref.name} needs: {' '.join(missing)}")
    try:
        content = open_server_content(host.conversation.session)
        text = find_text(await content.get_prompt(ref.server, ref.name, given))
    except (ContentRefused, ProtocolFault) as exc:
        raise SlashError(str(exc)) from exc
    if not text:
        raise SlashError("the prompt has no text")
    host.prompt(text)


# -- memory -----------------------------------------------------------------------------------


async def _change_memory(host: SlashHost, rest: str) -> None:
    action, _, text = rest.partition(" ")
    text = text.strip()
    if action not in {"", "add", "clear"} or (action != "add" and text):
        raise SlashError("write /memory, /memory add TEXT, or /memory clear")
    memory = host.conversation.resources.memory
    notes = await memory.read()
    if action == "add":
        if not text:
            raise SlashError("write what is to be noted: /memory add TEXT")
        size = len(append_note_line(notes, text).encode())
        if size > LARGEST_BYTES:
            raise SlashError(f"the notes would have {size:,} bytes, and hold {LARGEST_BYTES:,}: clear or edit them")
        await memory.append(text)
        host.screen.show(f"added to {MEMORY_NAME}")
    elif not notes.strip():
        host.screen.show(f"there are no notes ({MEMORY_NAME})")
    elif action == "clear":
        count = format_count(len(notes.splitlines()), "line")
        if await confirm(host, f"Remove all notes of {MEMORY_NAME} ({count})?"):
            await memory.replace("")
            host.screen.show("the notes are empty now")
    else:
        host.screen.print(escape_controls(notes))


MEMORY = SlashCommand(
    name="memory",
    usage="[add TEXT|clear]",
    describe="show the notes for later sessions, add to them, clear them",
    run=_change_memory,
)
