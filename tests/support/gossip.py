"""An HTTP server on the loopback that repeats what it was sent wherever an HTTP server can write.

It's an MCP server (`/mcp`, and behind a sign-in `/oauth/mcp`), one that refuses, fails, redirects or answers with
something else, an authorization server, an OpenAPI service, an OpenTelemetry collector, a webhook, and a proxy.
"""

from __future__ import annotations

import base64
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Generator


_RESOURCE = "/.well-known/oauth-protected-resource"
"""https://www.rfc-editor.org/rfc/rfc9728#section-3.1"""


@dataclass
class Gossip:
    """State of the server, for tests."""

    url: str = ""
    access: str = "access"
    """The token that it issues, and accepts."""
    refresh: str = "refresh"
    heard: list[bytes] = field(default_factory=list[bytes])
    """Every request as it came, with what was encoded in it."""
    exported: list[bytes] = field(default_factory=list[bytes])
    """What was sent to the collector."""


@contextmanager
def gossip_server(access: str = "access", refresh: str = "refresh") -> Generator[Gossip]:
    """Run the server."""
    state = Gossip(access=access, refresh=refresh)

    class Handler(_Handler):
        gossip = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="gossip")
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _decode(authorization: str) -> str:
    try:
        return base64.b64decode(authorization.rpartition(" ")[2], validate=True).decode()
    except ValueError:
        return ""


class _Handler(BaseHTTPRequestHandler):
    gossip: Gossip
    protocol_version = "HTTP/1.0"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = urlsplit(self.path).path
        authorizations = [self.headers.get(name, "") for name in ("authorization", "proxy-authorization")]
        sent = f"{self.command} {self.path}\n{self.headers}\n{unquote(self.path)}\n{[*map(_decode, authorizations)]}"
        self.gossip.heard += [sent.encode(), body, unquote(body.decode("utf-8", "replace")).encode()]
        encoded = f"{json.dumps(sent)} {quote(sent, safe='')} {base64.b64encode(sent.encode()).decode()}"
        self.sent = f"I was sent {sent} {encoded} {body!r}"
        where = f'Bearer resource_metadata="{self.gossip.url}{_RESOURCE}{path}"'
        if path.startswith("/v1/"):
            self.gossip.exported.append(body)
            self._send(200, b"", "application/x-protobuf")
        elif path.startswith("/oauth/") and self.headers.get("authorization") != f"Bearer {self.gossip.access}":
            self._send(401, self.sent.encode(), **{"WWW-Authenticate": where})
        elif path.endswith("/mcp") and self.command == "POST":
            self._answer_rpc(json.loads(body))
        else:
            self._repeat(path)

    def _repeat(self, path: str) -> None:
        line, said, url = " ".join(self.sent.split()), self.sent.encode(), self.gossip.url
        given = {"access_token": self.gossip.access, "refresh_token": self.gossip.refresh}
        issuer = {"issuer": url, "token_endpoint": f"{url}/token", "response_types_supported": ["code"]}
        bad = {**issuer, "issuer": f"{url}/bad", "token_endpoint": f"{url}/no-token"}
        if path.startswith(_RESOURCE):
            resource = {"resource": url + path.removeprefix(_RESOURCE), "authorization_servers": [url]}
            self._send_json(200, resource)
        elif path.startswith("/.well-known/"):
            self._send_json(200, bad if path.endswith("/bad") else issuer)
        elif path == "/token":
            self._send_json(200, {**given, "token_type": "Bearer", "expires_in": 3600})
        elif path == "/no-token":
            self._send_json(400, {"error": "invalid_client", "error_description": line})
        elif path.startswith("/api"):
            self._send_json(500 if "Failing" in path else 200, {"said": self.sent})
        elif path == "/moved":
            self._send(307, b"", Location=f"http://localhost:9/{quote(line[:2000])}")
        elif path == "/refuse":
            self._send(401, said, **{"WWW-Authenticate": f'Basic realm="{quote(line)}"'})
        else:
            status = {"/broken": 500, "/page": 200, "/mcp": 405}.get(path, 404)
            self._send(status, said, "text/html" if status == 200 else "text/plain")

    def _answer_rpc(self, frame: dict[str, Any]) -> None:
        if "id" not in frame:
            self._send(202, b"", "application/json")
            return
        result: dict[str, Any] = {}
        if frame["method"] == "initialize":
            facts: dict[str, Any] = {"capabilities": {"tools": {}}, "serverInfo": {"name": "gossip", "version": "1"}}
            result = {**facts, "protocolVersion": frame["params"]["protocolVersion"], "instructions": "For tests."}
        elif frame["method"] == "tools/list":
            names = ("answer", "err", "fail")
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
        elif frame["method"] == "tools/call" and frame["params"]["name"] != "fail":
            is_error = frame["params"]["name"] == "err"
            result = {"content": [{"type": "text", "text": self.sent}], "isError": is_error}
        else:
            self._send_json(200, {"jsonrpc": "2.0", "id": frame["id"], "error": {"code": -32601, "message": self.sent}})
            return
        self._send_json(200, {"jsonrpc": "2.0", "id": frame["id"], "result": result})

    def _send_json(self, status: int, value: object) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str = "text/plain", **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
