"""Mentions in a message: files as `@path` or `@"a path with spaces"`, and server resources as `@server:uri`.

The message stays as typed, and each block follows it: what's mentioned is untrusted, so it can't close its own block. A
path that names no file, and a word that names no configured server, are just text. The permission check treats reading
a resource as a call of the server's `read_resource`.
"""

from __future__ import annotations

import html
import os
import re
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.files.codec import HEAD_BYTES, decode_lossless, sniff
from indusagi.capabilities.files.lines import format_path
from indusagi.capabilities.files.policy import open_at, real_path, workspace_policy
from indusagi.capabilities.ports import PathRefused
from indusagi.core.app_dirs import parts_below
from indusagi.core.text import cut_text, make_visible
from indusagi.interop.protocol_bridge.contract import ProtocolFault
from induscode.deck.mcp.content import ContentRefused, ServerContent, find_text

if TYPE_CHECKING:
    from indusagi.adapters.calls import Attachment
    from induscode.boot.session import Session

MAX_RESOURCE_CHARS = 50 * 1024
MAX_RESOURCES = 20
MAX_FILE_BYTES = 50 * 1024
MAX_TOTAL_BYTES = 200 * 1024
_MAX_FILES = 100
_MAX_PICTURES, _MAX_PICTURE_BYTES = 8, 20 * 1024 * 1024
_PUNCTUATION = ".,;:!?)]}>'"
_MENTION = re.compile(r"""(?<![^\s(\[{<,;"'])@(?:"(?P<quoted>[^"\n]+)"|(?P<bare>[^\s"]+))""")
"""A mention starts a word, unlike the `@` of an e-mail address."""


def _enclose(tag: str, text: str) -> str:
    """Escape the closing tag, or the text after it would pass for the user's message."""
    return re.sub(rf"</(?={tag}\b)", r"<\\/", text, flags=re.IGNORECASE)


async def attach_mentions(text: str, session: Session) -> tuple[str, Sequence[str]]:
    """Attach the files and the resources that a message mentions, not those that attached texts mention."""
    with_files, notes = await attach_files(text, session.invocation.cwd)
    with_resources, remarks = await attach_resources(text, session)
    return with_files + with_resources.removeprefix(text), (*notes, *remarks)


# -- files --------------------------------------------------------------------------------------


async def attach_files(text: str, cwd: str) -> tuple[str, Sequence[str]]:
    """Attach the text files a message mentions; return the message for the model and notes for the user.

    The message stays as typed, and each file follows as a `<file path="…">` block, limited to 50 KiB per file and 200
    KiB in total. A path that names no file stays as typed; a file that isn't attached leaves a note.
    """
    return await to_thread.run_sync(_read_files, text, cwd, abandon_on_cancel=True)


async def attach_pictures(
    text: str, cwd: str, notes: Sequence[str], pasted: str = ""
) -> tuple[Sequence[Attachment], Sequence[str]]:
    """Read the pictures a message mentions, of the workspace or the directory `pasted`, scaled down for models.

    Return them, and the notes of `attach_files` without those about them.
    """
    from indusagi.adapters.calls import IMAGE_TYPES, Attachment  # noqa: PLC0415 — for a picture
    from indusagi.capabilities.files.media import EncodedImage, fit_image  # noqa: PLC0415 — for a picture

    left, pictures = list(notes), list[Attachment]()
    for path, kind, data in await to_thread.run_sync(_read_pictures, text, cwd, pasted):
        image = await fit_image(data, kind) if kind in IMAGE_TYPES else None
        if isinstance(image, EncodedImage):
            pictures.append(Attachment(image.data, image.mime))
            left = [note for note in left if not note.startswith(f"@{format_path(path)} is ")]
    return pictures, left


def _read_pictures(text: str, cwd: str, pasted: str) -> list[tuple[str, str, bytes]]:
    root = real_path(cwd)
    found: dict[str, tuple[str, str, bytes]] = {}
    for match in [*_MENTION.finditer(text)][:_MAX_PICTURES]:
        path = _find_mentioned(match["quoted"] or match["bare"], root, is_quoted=match["quoted"] is not None)
        if path is None or path in found:
            continue
        try:
            is_pasted = pasted and os.path.dirname(path) == pasted
            data, size = _read_start(path, pasted if is_pasted else root, _MAX_PICTURE_BYTES)
        except (PathRefused, OSError):  # `attach_files` has said so
            continue
        kind = sniff(data[:HEAD_BYTES])
        if kind is not None and kind.family == "image" and len(data) == size:
            found[path] = path, kind.mime, data
    return [*found.values()]


def _read_files(text: str, cwd: str) -> tuple[str, Sequence[str]]:
    root = real_path(cwd)
    blocks: dict[str, str] = {}
    notes: list[str] = []
    left = MAX_TOTAL_BYTES
    for match in [*_MENTION.finditer(text)][:_MAX_FILES]:
        path = _find_mentioned(match["quoted"] or match["bare"], root, is_quoted=match["quoted"] is not None)
        if path is None or path in blocks:
            continue
        name = format_path(path)
        try:
            data, size = _read_start(path, root, min(left, MAX_FILE_BYTES))
        except PathRefused as exc:
            cause = "it is outside the workspace" if exc.refusal == "outside" else "it is protected"
            notes.append(f"@{name} is not attached: {cause}")
            continue
        except OSError as exc:
            notes.append(f"@{name} is not attached: {exc.strerror or exc}")
            continue
        kind = sniff(data[:HEAD_BYTES])
        if kind is not None:
            notes.append(f"@{name} is named, not attached: {kind.name}, {size:,} bytes")
        elif size and not data:
            notes.append(
                f"@{name} is named, not attached: the attached files are {MAX_TOTAL_BYTES // 1024} KiB already"
            )
        else:
            blocks[path] = _format_block(name, data, size)
            left -= len(data)
            if len(data) < size:
                notes.append(f"@{name} is attached in part: {len(data):,} of {size:,} bytes")
    return "\n\n".join([text, *blocks.values()]), tuple(notes)


def _find_mentioned(written: str, root: str, *, is_quoted: bool) -> str | None:
    """Find the existing file a mention names, ignoring trailing punctuation."""
    while written and "\0" not in written:
        path = os.path.expanduser(written) if written.startswith("~/") else written
        try:
            found = os.path.lexists(os.path.join(root, path))
            if found and not os.path.isdir(os.path.join(root, path)):
                return path
        except (OSError, ValueError):  # not a path
            return None
        if found or is_quoted or written[-1] not in _PUNCTUATION:
            return None
        written = written[:-1]
    return None


def _read_start(path: str, root: str, limit: int) -> tuple[bytes, int]:
    """Read the start of a file up to a line end, and return it with the file's size.

    `PathRefused` if the workspace policy denies tools to read it, `OSError` if it's unreadable or no regular file.
    """
    resolved = real_path(os.path.join(root, path))
    base = workspace_policy(root).find_base(path, resolved, writing=False)
    with open_at(base, parts_below(resolved, base), resolved) as target:
        handle = target.open(os.O_RDONLY)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        cut = data[:limit]
        data = cut[: cut.rfind(b"\n") + 1] or cut
    return data, max(status.st_size, len(data))


def _format_block(name: str, data: bytes, size: int) -> str:
    # The data may end in the middle of a character.
    text = data.decode("utf-8", "ignore") if len(data) < size and _is_utf8_start(data) else decode_lossless(data)[0]
    visible = make_visible(text.replace("\r\n", "\n"))[0]
    body = _enclose("file", visible)
    cut = f"\n[cut: {len(data):,} of {size:,} bytes; read shows the rest]" if len(data) < size else ""
    return f'<file path="{html.escape(name)}">\n{body.removesuffix(chr(10))}{cut}\n</file>'


def _is_utf8_start(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as exc:
        return exc.start >= len(data) - 3
    return True


# -- server resources ---------------------------------------------------------------------------


def open_server_content(session: Session) -> ServerContent:
    """Open the resources and prompts of a session's servers, subject to its permission check."""
    return ServerContent(session.mcp, session.wrap, session.native.context)


async def attach_resources(text: str, session: Session) -> tuple[str, Sequence[str]]:
    """Attach the resources that a message mentions. Return the message for the model, and notes for the user.

    Each resource follows the unchanged message as a block `<resource server="…" uri="…">`, cut to 50 KiB. An unreadable
    one leaves a note.
    """
    servers = sorted((row.id for row in session.mcp.plan.rows), key=len, reverse=True)
    blocks: dict[tuple[str, str], str] = {}
    notes: list[str] = []
    for match in [*_MENTION.finditer(text)][:MAX_RESOURCES]:
        mention = match["quoted"] or match["bare"].rstrip(_PUNCTUATION)
        server = next((server for server in servers if mention.startswith(f"{server}:")), None)
        uri = "" if server is None else mention[len(server) + 1 :]
        if server is None or not uri or (server, uri) in blocks:
            continue
        try:
            result = await open_server_content(session).read_resource(server, uri)
        except (ContentRefused, ProtocolFault) as exc:
            notes.append(f"@{mention} is not attached: {exc}")
            continue
        body = _enclose("resource", make_visible(cut_text(find_text(result), MAX_RESOURCE_CHARS))[0])
        named = f'server="{html.escape(server)}" uri="{html.escape(uri)}"'
        blocks[server, uri] = f"<resource {named}>\n{body}\n</resource>"
    return "\n\n".join([text, *blocks.values()]), tuple(notes)
