"""`indus connectors`, and its actions in `indus call`, `indus -p` and `indus serve`."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from tests.commands.serving import greeted
from tests.support.model_server import calls, model_server, says
from tests.support.openapi import build_document
from tests.support.scripts import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


class _Service(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        self._send({"did": f"{self.command} {self.path}", "token": self.headers.get("authorization"), "body": body})

    def _send(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/openapi.json":
            self._send(build_document(servers=[{"url": "/v1"}]))
        else:
            self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def host() -> Iterator[str]:
    """Serve the made-up service and its document on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Service) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def _told(*words: str, cwd: Path, **variables: str) -> Any:
    done = run(*words, "--json", cwd=cwd, **variables)
    return json.loads(done.stdout)


def test_a_connector_is_added_listed_examined_used_and_removed(tmp_path: Path, host: str) -> None:
    (tmp_path / "shop.json").write_text(json.dumps(build_document()))
    added = run(
        "connectors", "add", "shop", "shop.json", "--base-url", f"http://{host}", "--auth", "bearer:SHOP_TOKEN",
        cwd=tmp_path,
    )  # fmt: skip
    assert (added.returncode, added.stdout) == (0, f"shop: 318 operations at http://{host}, bearer:SHOP_TOKEN\n")
    assert "the variable SHOP_TOKEN is not set here" in added.stderr
    (row,) = _told("connectors", "list", cwd=tmp_path)["connectors"]
    assert (row["name"], row["operations"], row["changed"]) == ("shop", 318, False)
    assert "bearer:SHOP_TOKEN" in run("connectors", cwd=tmp_path).stdout
    (found,) = _told("connectors", "doctor", cwd=tmp_path)["connectors"]
    assert [problem.split(":")[0] for problem in found["problems"]] == [
        "its base URL cannot be reached",
        "the variable SHOP_TOKEN is not set here",
    ]
    ok = run("connectors", "doctor", "--web-allow", host, cwd=tmp_path, SHOP_TOKEN="s3cr3t")
    assert (ok.returncode, ok.stdout) == (0, "shop: ok\n")
    words = ["saas-action", "action=execute", "slug=SHOP_CREATE_CUSTOMER", 'arguments:={"body":{"name":"Ada"}}']
    refused = run("call", *words, cwd=tmp_path, SHOP_TOKEN="s3cr3t")
    assert (refused.returncode, "--web-allow" in refused.stdout) == (1, True)
    done = run("call", "--web-allow", host, *words, cwd=tmp_path, SHOP_TOKEN="s3cr3t")
    answer = json.loads(done.stdout)
    assert answer["body"] == {"did": "POST /customers", "token": "Bearer [SHOP_TOKEN]", "body": '{"name":"Ada"}'}
    assert _told("connectors", "remove", "shop", cwd=tmp_path) == {"removed": "shop"}
    assert "no connector is configured" in run("call", *words, cwd=tmp_path).stderr


def test_a_document_at_an_address_is_fetched_and_gives_the_base_url(tmp_path: Path, host: str) -> None:
    url = f"http://{host}/openapi.json"
    refused = run("connectors", "add", "shop", url, cwd=tmp_path)
    assert (refused.returncode, "the document cannot be fetched" in refused.stderr) == (3, True)
    added = _told("connectors", "add", "shop", url, "--web-allow", host, cwd=tmp_path)
    assert added["baseUrl"] == f"http://{host}/v1"
    done = run("call", "--web-allow", host, "saas-action", "action=execute", "slug=SHOP_LIST_CARTS", cwd=tmp_path)
    assert json.loads(done.stdout)["body"]["did"] == "GET /v1/carts"


def test_a_changed_document_waits_for_approval(tmp_path: Path) -> None:
    source = tmp_path / "shop.json"
    source.write_text(json.dumps(build_document()))
    run("connectors", "add", "shop", "shop.json", cwd=tmp_path)
    document = build_document(servers=[{"url": "https://moved.shop.example"}])
    source.write_text(json.dumps(document).replace('"/carts"', '"/trolleys"').replace("listCarts", "listTrolleys"))
    done = run("call", "saas-action", "action=execute", "slug=SHOP_LIST_CARTS", cwd=tmp_path)
    assert "is disabled: its document has changed" in done.stdout
    (found,) = _told("connectors", "doctor", "shop", cwd=tmp_path)["connectors"]
    assert found["changed"]
    assert "its base URL becomes https://moved.shop.example" in str(found["problems"])
    asked = run("connectors", "approve", "shop", cwd=tmp_path)
    digest = re.search(r"use --yes --digest ([0-9a-f]{64})", asked.stderr)
    assert digest is not None
    assert asked.returncode == 2
    assert '  -  "path": "/carts",' in asked.stdout.splitlines()
    assert '  +  "path": "/trolleys",' in asked.stdout.splitlines()
    good = source.read_text()
    source.write_text(good.replace("/trolleys", "/admin"))
    refused = run("connectors", "approve", "shop", "--yes", "--digest", digest[1], cwd=tmp_path)
    assert (refused.returncode, "it has changed since you looked" in refused.stderr) == (1, True)
    source.write_text(good)
    approved = _told("connectors", "approve", "shop", "--yes", "--digest", digest[1], cwd=tmp_path)
    assert approved["change"]["added"] == ["SHOP_LIST_TROLLEYS"]
    assert approved["change"]["removed"] == ["SHOP_LIST_CARTS"]
    assert approved["baseUrl"] == "https://moved.shop.example"
    again = run("connectors", "approve", "shop", cwd=tmp_path)
    assert again.stdout == "shop: nothing has changed\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["add", "Shop", "x.json"], 2, "cannot be the name of a connector"),
        (["add", "shop", "x.json", "--auth", "bearer:sk-live-42"], 2, "the secret itself is never given"),
        (["add", "shop", "x.json"], 3, "cannot be read"),
        (["add", "shop", "note.txt"], 3, "no OpenAPI document"),
        (["remove", "shop"], 2, "There is no connector 'shop'"),
        (["doctor", "shop"], 2, "There is no connector 'shop'"),
        (["approve", "shop"], 2, "There is no connector 'shop'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, words: list[str], code: int, message: str) -> None:
    (tmp_path / "note.txt").write_text("{}")
    done = run("connectors", *words, cwd=tmp_path)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert "sk-live-42" not in done.stderr


def test_a_prompt_finds_and_executes_an_action(tmp_path: Path, host: str) -> None:
    (tmp_path / "shop.json").write_text(json.dumps(build_document()))
    run("connectors", "add", "shop", "shop.json", "--base-url", f"http://{host}", cwd=tmp_path)
    script = [
        calls("saas-action", action="discover", query="add a customer"),
        calls("saas-action", action="execute", slug="SHOP_CREATE_CUSTOMER", arguments={"body": {"name": "Ada"}}),
        says("done"),
    ]
    for allow, expected in (("saas-action(POST domain:127.0.0.1)", "POST /customers"), ("read", "was not run")):
        with model_server(*script) as server:
            done = run(
                "-p", "add Ada", "--model", "openai:test", "--web-allow", host, "--allow", allow, cwd=tmp_path,
                OPENAI_BASE_URL=f"{server.url}/v1", OPENAI_API_KEY="x",
            )  # fmt: skip
        assert done.returncode == 0, done.stderr
        sent = json.dumps(server.requests[-1]["messages"])
        assert "SHOP_CREATE_CUSTOMER" in sent
        assert expected in sent


def test_the_gateway_serves_actions_with_the_profile_all(tmp_path: Path, host: str) -> None:
    (tmp_path / "shop.json").write_text(json.dumps(build_document()))
    run("connectors", "add", "shop", "shop.json", "--base-url", f"http://{host}", cwd=tmp_path)
    with greeted("--profile", "all", "--no-mcp", cwd=tmp_path) as gateway:
        assert "saas-action" in gateway.tools()
        run("connectors", "remove", "shop", cwd=tmp_path)
        assert gateway.until_tools(lambda tools: "read" in tools and "saas-action" not in tools)
        run("connectors", "add", "shop", "shop.json", "--base-url", f"http://{host}", cwd=tmp_path)
        assert gateway.until_tools(lambda tools: "saas-action" in tools), "no restart is needed"
    with greeted("--profile", "survey", "--no-mcp", cwd=tmp_path) as gateway:
        assert "saas-action" not in gateway.tools()
