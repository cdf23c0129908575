"""A local mirror of an MCP registry, API v0.1, for tests."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

PAGE = 2


def entry(name: str, version: str = "1.0.0", *, status: str = "active", **fields: Any) -> dict[str, Any]:
    """Make one entry as the registry answers it."""
    server = {"name": name, "version": version, "description": f"About {name}.", **fields}
    official = {"status": status, "isLatest": True, "publishedAt": "2026-01-01T00:00:00Z"}
    return {"server": server, "_meta": {"io.modelcontextprotocol.registry/official": official}}


def package(kind: str, identifier: str, version: str = "1.2.3", **fields: Any) -> dict[str, Any]:
    """Make a package of an entry."""
    row = {"registryType": kind, "identifier": identifier, "transport": {"type": "stdio"}, **fields}
    return {**row, "version": version} if version else row


def find_answer(entries: Sequence[dict[str, Any]], path: str) -> bytes | None:
    """Find the answer to a request; None if there is nothing at its path."""
    parts = urlsplit(path)
    words = [unquote(word) for word in parts.path.strip("/").split("/")]
    if words == ["v0.1", "servers"]:
        query = parse_qs(parts.query)
        rows = [one for one in entries if query["search"][0] in one["server"]["name"].lower()]
        start = int(query.get("cursor", ["0"])[0])
        more = {"nextCursor": str(start + PAGE)} if start + PAGE < len(rows) else {}
        return json.dumps({"servers": rows[start : start + PAGE], "metadata": {"count": PAGE, **more}}).encode()
    for one in entries:
        server = one["server"]
        if words[:4] == ["v0.1", "servers", server["name"], "versions"] and words[4] in {"latest", server["version"]}:
            return json.dumps(one).encode()
    return None


@contextmanager
def mirror(
    *entries: dict[str, Any], answer: bytes | None = None, location: str = ""
) -> Generator[tuple[str, list[str]]]:
    """Serve entries; yield the address and the requests so far. `answer` replaces every answer."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            body, status = answer if answer is not None else find_answer(entries, self.path), 200
            if location:
                status = 302
            elif body is None:
                body, status = b'{"title":"Not Found"}', 404
            self.send_response(status)
            if location:
                self.send_header("location", location)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
