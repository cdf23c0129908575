"""What `webfetch` does: a page from the cache or the web, in parts, in a fence."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

from anyio import current_time, to_thread

from indusagi.capabilities.budget import OutputBudget, clip
from indusagi.capabilities.context import PerContext
from indusagi.capabilities.files.text.display import ReadFailure
from indusagi.capabilities.ports import FetchError, WebSettings
from indusagi.capabilities.web.cache import PageCache
from indusagi.capabilities.web.client import Elsewhere, WebClient
from indusagi.capabilities.web.document import PDF, picture_of, text_of
from indusagi.capabilities.web.fence import FENCE_BYTES, fenced
from indusagi.capabilities.web.media import ending_of, is_text
from indusagi.capabilities.web.page import ACCEPT, BytesPage, TextPage, page_of
from indusagi.capabilities.web.target import parse_target
from indusagi.core.app_dirs import create_private_file, make_private_dir
from indusagi.core.ids import new_ulid
from indusagi.core.text import clean_text, cut_text, format_count
from indusagi.runtime.content import JsonContentBlock, TextContentBlock
from indusagi.runtime.contract import Keep, ToolResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.files.media.images import EncodedImage
    from indusagi.capabilities.overflow import SessionDir
    from indusagi.capabilities.web.body import Cut
    from indusagi.capabilities.web.client import Fetched
    from indusagi.capabilities.web.page import Format
    from indusagi.core.json import JsonObject, JsonValue

_ERROR_CHARACTERS: Final = 2_000
"""How much is shown of the page that comes with an HTTP error."""
_LATER = re.compile(r"\d{1,9}|\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT")
"""In seconds, or when."""
_LEAST: Final = OutputBudget(1_024, 20)
_AROUND: Final = OutputBudget(FENCE_BYTES + 200, 6)
"""What stands around the text besides its heading."""
_CUTS: Final[dict[Cut | None, str]] = {
    "size": " (truncated here: `maxBytes` can be up to 5 MiB)",
    "ratio": " (truncated: it grows out of all proportion when unpacked)",
    "ended early": " (truncated: the connection ended before the page did)",
    None: "",
}


@dataclass(frozen=True, slots=True)
class _Kept:
    """A page, and the facts that go with each of its parts."""

    page: TextPage
    facts: Mapping[str, JsonValue]


_pages: PerContext[PageCache[_Kept]] = PerContext(PageCache)


async def fetch(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    """Answer a call of the tool."""
    settings = ctx.framework.web or WebSettings()
    form = cast("Format", arguments.get("format", "markdown"))
    offset = cast("int", arguments.get("offset", 0))
    wanted = cast("int", arguments.get("maxBytes", settings.default_bytes))
    try:
        url = parse_target(cast("str", arguments["url"])).url
        cache, key = _pages.of(ctx), (url, form, wanted)
        kept = cache.get(key, current_time())
        if kept is not None:
            return _part(kept, offset, ctx.budget, cached=True)
        found = await _fetched(url, settings, form, wanted)
        if isinstance(found, Elsewhere):
            return _elsewhere(found)
        page = await page_of(found, form)
    except FetchError as trouble:
        return ToolResult.error(str(trouble), code=trouble.code, **trouble.facts)
    if not HTTPStatus.OK <= found.status < HTTPStatus.MULTIPLE_CHOICES:
        return _http_error(found, page)
    facts = {**_facts(found, page.kind), "format": form}
    if isinstance(page, BytesPage):
        shown = await _shown(found, page, facts, ctx.session_dir)
        if isinstance(shown, ToolResult):
            return shown
        page = shown
    kept = _Kept(page, facts)
    if "no-store" not in found.headers.get("cache-control", "").lower():
        until = current_time() + settings.cache_s
        cache.put(key, kept, 4 * len(page.text), until=until, limit=settings.cache_bytes)
    return _part(kept, offset, ctx.budget, cached=False)


async def _fetched(url: str, settings: WebSettings, form: Format, wanted: int) -> Fetched | Elsewhere:
    def cap(headers: Mapping[str, str]) -> int:
        # Half a picture or half a file is of no use: those are taken whole or not at all.
        return wanted if is_text(headers) else settings.hard_bytes

    return await WebClient(settings).fetch(url, accept=ACCEPT[form], cap=cap)


# -- answers --------------------------------------------------------------------------------------


def _part(kept: _Kept, offset: int, budget: OutputBudget, *, cached: bool) -> ToolResult:
    text, total = kept.page.text, len(kept.page.text)
    head = f"{_head(kept.facts)}, {format_count(total, 'character')}"
    if offset and offset >= total:
        message = f"{head}: offset {offset:,} is past the end"
        return ToolResult.error(message, code="invalid_arguments", characters=total)
    notes = "".join(f"\nNote: {note}." for note in kept.page.notes)
    room = OutputBudget(
        max(_LEAST.max_bytes, budget.max_bytes - len(f"{head}{notes}".encode()) - _AROUND.max_bytes),
        max(_LEAST.max_lines, budget.max_lines - notes.count("\n") - _AROUND.max_lines),
    )
    # No character is shorter than a byte: what lies further on cannot be shown, and is not copied.
    shown = clip(text[offset : offset + room.max_bytes + 1], room, Keep.HEAD).head
    end = offset + len(shown)
    facts: dict[str, JsonValue] = {
        **kept.facts,
        "characters": total,
        "offset": offset,
        "nextOffset": end if end < total else None,
        "hidden": kept.page.hidden,
        "cached": cached,
    }
    part = "" if (offset, end) == (0, total) else f", here {offset:,} to {end:,}"
    more = f"; for the next part use offset {end}" if end < total else ""
    said = f"{head}{part}{more}{notes}\n{fenced(shown, 'page')}"
    return ToolResult((TextContentBlock(said),), details=facts)


def _head(facts: Mapping[str, JsonValue]) -> str:
    """Say in a line what came: from where, status, type, bytes, and whether it is whole."""
    cut = _CUTS[cast("Cut | None", facts["cut"])]
    status = _status(cast("int", facts["status"]))
    size = format_count(cast("int", facts["bytes"]), "byte")
    return f"{facts['url']}: {status}, {facts['contentType']}, {size}{cut}"


def _facts(found: Fetched, kind: str) -> dict[str, JsonValue]:
    return {
        "url": found.target.url,
        "status": found.status,
        "contentType": kind,
        "bytes": found.received,
        "truncated": found.cut is not None,
        "cut": found.cut,
        "redirects": [*found.hops],
    }


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _elsewhere(found: Elsewhere) -> ToolResult:
    message = (
        f"{found.came_from} redirects to another site ({_status(found.status)}): {found.url}\n"
        "It was not followed. If that is where you want to go, fetch that address."
    )
    return ToolResult.text(message, status=found.status, redirect=found.url, redirects=[*found.hops, found.came_from])


def _http_error(found: Fetched, page: TextPage | BytesPage) -> ToolResult:
    facts = _facts(found, page.kind)
    message = f"{found.target.url} answered {_status(found.status)}"
    if "retry-after" in found.headers:
        later = facts["retryAfter"] = clean_text(found.headers["retry-after"])[0][:100]
        # Anything else would be words of the server outside of the fence.
        message += f"; Retry-After: {later}" if _LATER.fullmatch(later) else ""
    if isinstance(page, TextPage) and page.text.strip():
        message += f"\n{fenced(cut_text(page.text.strip(), _ERROR_CHARACTERS), 'page')}"
    return ToolResult.error(message, code="http_status", **facts)


async def _shown(
    found: Fetched, page: BytesPage, facts: dict[str, JsonValue], session: SessionDir
) -> ToolResult | TextPage:
    """Show what is no text as far as it can be shown, and save the rest of it."""
    if found.cut is not None:
        why = {"size": "is larger than can be fetched", "ratio": "is packed too tightly"}
        message = f"{found.target.url}: this {page.kind} {why.get(found.cut, 'broke off')}"
        return ToolResult.error(message, code="too_large" if found.cut in why else "failed", **facts)
    head, shown = _head(facts), None
    if page.is_image:
        shown = await picture_of(page)
        if not isinstance(shown, ReadFailure):
            return _picture(shown, head, facts)
    elif page.kind == PDF and facts["format"] in {"markdown", "text"}:
        shown = await text_of(page)
    try:
        path = facts["path"] = await to_thread.run_sync(_saved, session, page)
    except OSError as exc:
        return ToolResult.error(f"{head}: it could not be saved: {exc}", code="failed", **facts)
    if isinstance(shown, TextPage):
        whole = f"the file is in {path}: read can show all of its pages"
        return replace(shown, notes=(*shown.notes, whole))
    why = "this is no text" if shown is None else shown.why
    return ToolResult.text(f"{head}\nIt is not shown: {why}. It was saved as {path}", **facts)


def _picture(picture: EncodedImage, head: str, facts: dict[str, JsonValue]) -> ToolResult:
    if (picture.width, picture.height) != picture.former:
        width, height = picture.former
        head += f", {width} by {height} pixels; shown as {picture.width} by {picture.height}"
    encoded = b64encode(picture.data).decode("ascii")
    block: JsonObject = {"type": "image", "data": encoded, "mimeType": picture.mime}
    return ToolResult((TextContentBlock(head), JsonContentBlock(block)), details=facts)


def _saved(session: SessionDir, page: BytesPage) -> str:
    folder = make_private_dir(os.path.join(session.make(), "downloads"))
    path = os.path.join(folder, f"webfetch-{new_ulid()}{ending_of(page.kind)}")
    with os.fdopen(create_private_file(path), "wb", buffering=0) as file:
        try:
            file.write(page.data)
        except OSError:
            os.unlink(path)
            raise
    return path
