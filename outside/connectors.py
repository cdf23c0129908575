"""Connectors judged by a real document: GitHub's REST API, 1,200 operations, from the package `@octokit/openapi`.

The document is taken from the registry into `.outside/`, once. A server on the loopback interface answers in place of
the service. `python -m outside.connectors` exits with 1 if a row fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
import threading
import tomllib
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio

from indusagi.capabilities.ports import WebSettings
from indusagi.core.json import JsonObject, JsonValue
from induscode.connectors.auth import parse_auth
from induscode.connectors.gateway import ConnectorGateway
from induscode.connectors.sources import examine_source
from induscode.connectors.store import ConnectorStore
from induscode.deck.contract import ActionError
from outside.install import find_node

ROOT = Path(__file__).parents[1]
PACKAGE = "@octokit/openapi@23.0.2"
MEMBER = "package/generated/api.github.com.json"
DOCUMENT = ROOT / ".outside" / "openapi-github.json"
QUERIES = Path(__file__).parent / "connectors_queries.toml"
LEAST_FOUND = 18
SECRET = "not-a-secret-0123456789"


def fetch_document() -> bytes:
    """Read the document; npm fetches the package first if it is missing."""
    if not DOCUMENT.exists():
        DOCUMENT.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            node = find_node()
            if node is None:
                raise SystemExit("there is no node with npm, which fetches the document")
            subprocess.run([*node.npm, "pack", PACKAGE], cwd=folder, check=True, capture_output=True, timeout=300)
            (archive,) = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as package:
                file = package.extractfile(MEMBER)
                assert file is not None
                DOCUMENT.write_bytes(file.read())
    return DOCUMENT.read_bytes()


class Service(BaseHTTPRequestHandler):
    """Answers in place of the service; the owner in the path says how."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        owner = self.path.split("/")[2] if self.path.startswith("/repos/") else ""
        facts = {"request": f"{self.command} {self.path}", "auth": self.headers.get("authorization"), "body": body}
        answers: dict[str, tuple[int, dict[str, str], bytes]] = {
            "moved": (301, {"Location": "/repos/there/r"}, b""),
            "away": (302, {"Location": "https://elsewhere.example/repos"}, b""),
            "metadata": (302, {"Location": "http://169.254.169.254/latest"}, b""),
            "refused": (401, {"Content-Type": "application/json"}, b'{"message": "Bad credentials"}'),
            "busy": (429, {"Retry-After": "30"}, b"slow down"),
            "huge": (200, {"Content-Type": "application/json"}, b'"' + b"x" * 20_000_000 + b'"'),
            "binary": (200, {"Content-Type": "application/octet-stream"}, bytes(range(256)) * 64),
        }
        plain = (200, {"Content-Type": "application/json"}, json.dumps(facts).encode())
        status, headers, data = answers.get(owner, plain)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(data)
        except ConnectionError:
            self.close_connection = True  # the client has read enough

    def do_GET(self) -> None:
        """Answer."""
        self._answer()

    def do_POST(self) -> None:
        """Answer."""
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def serve() -> Generator[str]:
    """Serve on a free port of the loopback interface."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


async def judge(host: str, folder: str) -> list[tuple[str, bool, str]]:
    """Run every row: its name, whether it is right, and what was seen."""
    source = str(DOCUMENT)
    reading = examine_source("github", source, fetch_document(), f"http://{host}", parse_auth("bearer:GITHUB_TOKEN"))
    store = ConnectorStore(folder)
    store.add(reading.row, reading.document)
    environ = {"GITHUB_TOKEN": SECRET}
    gateway = ConnectorGateway(store, WebSettings(allow_private=(host,)), environ)
    guarded = ConnectorGateway(store, WebSettings(), environ)
    count = len(reading.operations)
    rows = [("operations of the document", count >= 300, f"{count:,}, left out: {len(reading.notes)}")]
    operations = {operation.id: operation.slug for operation in reading.operations}
    found, missed = 0, list[str]()
    for query, identity in tomllib.loads(QUERIES.read_text()).items():
        actions = await gateway.discover(query, [])
        if operations[identity] in [action["slug"] for action in actions[:5]]:
            found += 1
        else:
            missed.append(query)
    rows.append(("described operations in the first five", found >= LEAST_FOUND, f"{found} of 20; missed: {missed}"))

    async def get_repository(owner: str, gateway: ConnectorGateway = gateway) -> JsonValue:
        return await gateway.execute("GITHUB_REPOS_GET", {"owner": owner, "repo": "r"})

    async def check(name: str, call: Callable[[], Awaitable[JsonValue]], expected: str) -> None:
        try:
            seen = json.dumps(await call())
        except ActionError as exc:
            seen = f"{exc.code}: {exc}"
        rows.append((name, expected in seen and SECRET not in seen, seen[:110].replace("\n", " ")))

    right: JsonObject = {"owner": "o", "repo": "r", "body": {"title": "It breaks"}}
    wrong: JsonObject = {"owner": "o", "body": {"titel": "It breaks"}}
    await check("right arguments", lambda: gateway.execute("GITHUB_ISSUES_CREATE", right), "POST /repos/o/r/issues")
    await check("wrong arguments", lambda: gateway.execute("GITHUB_ISSUES_CREATE", wrong), "invalid_arguments")
    for owner, expected in (
        ("moved", "GET /repos/there/r"),
        ("away", "redirect: "),
        ("metadata", "denied: "),
        ("refused", "401 Unauthorized; the credentials of GITHUB_TOKEN were refused"),
        ("busy", "Retry-After: 30"),
        ("huge", '"truncated": "size"'),
        ("binary", "savedAs"),
    ):
        await check(f"answer: {owner}", lambda owner=owner: get_repository(owner), expected)
    await check("without --web-allow", lambda: get_repository("o", guarded), "denied: ")
    return rows


def main() -> int:
    """Judge, and print a table."""
    with serve() as host, tempfile.TemporaryDirectory() as folder:
        rows = anyio.run(judge, host, folder)
    for name, is_right, seen in rows:
        print(f"{'ok' if is_right else 'WRONG':6} {name:40} {seen}")
    return 0 if all(is_right for _, is_right, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
