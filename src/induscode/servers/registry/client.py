"""Client of an MCP registry, API v0.1: https://github.com/modelcontextprotocol/registry/tree/main/docs/reference/api.

The registry is another party: its texts are cleaned, its answers bounded, and what it says is shown before it is used.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from indusagi.capabilities.ports import FetchError, WebSettings
from indusagi.capabilities.web.client import CrossSiteRedirect, WebClient
from indusagi.capabilities.web.url import parse_url
from indusagi.core.faults import CoreError
from indusagi.core.json import is_json_object
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from indusagi.core.json import JsonObject, JsonValue

_OFFICIAL = "io.modelcontextprotocol.registry/official"
_LARGEST_BYTES = 4 * 1024 * 1024
_PAGE = 100
_MOST_PAGES = 5
_MOST_WORDS = 4
_TEXT_CHARS = 200
_OK, _NOT_FOUND = 200, 404


class RegistryError(CoreError):
    """The registry cannot be reached, has no such server, or its entry cannot be used."""


@record
class RegistryServer:
    """One version of a server in the registry."""

    name: str
    """Reverse DNS and a name: `io.github.owner/server`."""
    version: str
    description: str
    status: str
    """`active`, `deprecated` or `deleted`."""
    document: JsonObject
    """Its `server.json`."""

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of packages it has, and `remote` if it runs somewhere."""
        packages = [str(package.get("registryType")) for package in self.objects("packages")]
        return [*dict.fromkeys(packages), *(["remote"] if self.objects("remotes") else [])]

    def objects(self, key: str) -> list[JsonObject]:
        """Return the objects of a list of the document."""
        values = self.document.get(key)
        return [value for value in values if is_json_object(value)] if isinstance(values, list) else []


class RegistryClient:
    """Asks one registry, which the user has named, by the guarded HTTP client."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        target = parse_url(self._url)
        # The user has named this address, on whatever network it is; redirects to other sites are refused all the same.
        allowed = (f"{target.host}:{target.port}",)
        self._client = WebClient(WebSettings(allow_private=allowed, ports=(target.port,), hard_bytes=_LARGEST_BYTES))

    async def search(self, words: Sequence[str], limit: int) -> list[RegistryServer]:
        """Find the latest versions of servers with one word in their names, and all words in names or descriptions.

        Raises:
            RegistryError: The registry does not answer, or its answer is invalid.
        """
        lowered = sorted({word.lower() for word in words}, key=len, reverse=True)
        found: dict[str, RegistryServer] = {}
        # The registry looks for one text in names: it is asked for each word, and all words are looked for here.
        for word in lowered[:_MOST_WORDS]:
            async for server in self._list(word):
                text = f"{server.name} {server.description}".lower()
                if server.status != "deleted" and all(part in text for part in lowered):
                    found.setdefault(server.name, server)
                if len(found) >= limit:
                    return [*found.values()]
        return [*found.values()]

    async def _list(self, text: str) -> AsyncGenerator[RegistryServer]:
        """List the latest versions of servers with a text in their name, page by page."""
        query = {"version": "latest", "limit": str(_PAGE), "search": text}
        for _ in range(_MOST_PAGES):
            answer = await self._get("servers", query)
            rows = answer.get("servers")
            for row in rows if isinstance(rows, list) else []:
                if (server := parse_server(row)) is not None:
                    yield server
            metadata = answer.get("metadata")
            cursor = metadata.get("nextCursor") if is_json_object(metadata) else None
            if not isinstance(cursor, str) or not cursor or cursor == query.get("cursor"):
                return
            query["cursor"] = cursor

    async def read_server(self, name: str, version: str = "latest") -> RegistryServer:
        """Read one version of a server.

        Raises:
            RegistryError: There is none, or the registry does not answer.
        """
        wanted = repr(name) if version == "latest" else f"{name!r} in version {version!r}"
        path = f"servers/{quote(name, safe='')}/versions/{quote(version, safe='')}"
        answer = await self._get(path, {}, f"has no server {wanted}: indus mcp search WORDS")
        server = parse_server(answer)
        if server is None or server.name != name or version not in {"latest", server.version}:
            found = "nothing" if server is None else f"{server.name!r} in version {server.version!r}"
            raise RegistryError(f"{self._url} was asked for the server {wanted}, and answered with {found}")
        return server

    async def _get(self, path: str, query: dict[str, str], absent: str = "") -> JsonObject:
        url = f"{self._url}/v0.1/{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            answer = await self._client.fetch(url, accept="application/json", cap=lambda _: _LARGEST_BYTES)
        except FetchError as exc:
            raise RegistryError(f"the registry cannot be reached: {exc}") from exc
        if isinstance(answer, CrossSiteRedirect):
            raise RegistryError(f"the registry {self._url} has moved to {answer.url}: set registry.url, if it is meant")
        if answer.status == _NOT_FOUND and absent:
            raise RegistryError(f"{self._url} {absent}")
        try:
            document: JsonValue = json.loads(answer.body)
        except (ValueError, RecursionError):
            document = None
        if answer.status != _OK or answer.cut is not None or not is_json_object(document):
            raise RegistryError(f"{self._url} gave no usable answer (status {answer.status})")
        return document


def parse_server(row: JsonValue) -> RegistryServer | None:
    """Parse one row of an answer; None if it is no server."""
    document = row.get("server") if is_json_object(row) else None
    if not is_json_object(row) or not is_json_object(document):
        return None
    name, version, text = (document.get(key) for key in ("name", "version", "description"))
    if not isinstance(name, str) or not isinstance(version, str) or not name or not version:
        return None
    meta = row.get("_meta")
    official = meta.get(_OFFICIAL) if is_json_object(meta) else None
    status = official.get("status") if is_json_object(official) else None
    described = " ".join(clean_text(text)[0].split()) if isinstance(text, str) else ""
    return RegistryServer(
        clean_text(name)[0],
        clean_text(version)[0],
        cut_text(described, _TEXT_CHARS),
        status if isinstance(status, str) else "active",
        document,
    )
