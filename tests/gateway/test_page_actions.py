"""What the owner changes on the page, over HTTP without scripts: each form is bound to what it showed."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.commands.helpers import PYTHON, user_file
from tests.commands.serving import wait_for
from tests.gateway.test_page import EVIL, Browser, markup, opened
from tests.registry.mirror import entry, mirror
from tests.support.servers import SERVERS

pytestmark = pytest.mark.process
SECRET = "sk-live-4242424242424242"
LIBRARY = str(SERVERS / "library.py")


def read_form(browser: Browser, path: str, action: str, **more: str) -> dict[str, str]:
    """Read the hidden fields of the form with an action (and other fields), as a browser would send them."""
    text = browser.client.get(f"/ui{path}").text
    return find_form(text, action, **more)


def find_form(text: str, action: str, **more: str) -> dict[str, str]:
    for form in re.findall(r"<form.*?</form>", text, re.DOTALL):
        found = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form))
        found = {key: html.unescape(value) for key, value in found.items()}
        if found.get("action") == action and all(found.get(key) == value for key, value in more.items()):
            found.pop("form_key")
            return found
    raise AssertionError(f"no form for {action!r}: {text}")


def send(browser: Browser, path: str, /, **form: str) -> str:
    """Submit a form, follow its redirect, and return the page's markup after the checks of every page."""
    key = find_key(browser)
    response = browser.client.post(f"/ui{path}", data={"form_key": key, **form}, follow_redirects=True)
    assert response.status_code == 200, response.text
    assert SECRET not in response.text
    browser.check(response)
    return response.text


def find_key(browser: Browser) -> str:
    found = re.search(r'name="form_key" value="([^"]+)"', browser.client.get("/ui").text)
    assert found is not None
    return found[1]


def read_rows() -> dict[str, Any]:
    return json.loads(user_file().read_text(encoding="utf-8"))["servers"] if user_file().exists() else {}


def test_a_server_is_added_as_it_was_shown_and_its_secret_stays_apart(tmp_path: Path) -> None:
    with opened(cwd=tmp_path) as browser:
        assert "Add a server" in browser.get("")
        target = shlex.join([*PYTHON, LIBRARY, "--name", EVIL])
        bad = send(browser, "/add", action="plan", target=target, name="no good", variables="")
        assert "is not a valid name of a server" in bad
        assert "isn't complete" in send(browser, "/add", action="plan", target="x 'y", name="", variables="")
        given = {"target": target, "name": "books", "variables": f"API_TOKEN={SECRET}\nMODE=<b>", "sandbox": "off"}
        shown = send(browser, "/add", action="plan", **given)
        assert "&lt;script&gt;alert(1)" in shown
        assert "${keyring:books.API_TOKEN}" in shown
        form = find_form(shown, "add")
        assert "too old" in send(browser, "/add", **{**form, "digest": "0" * 64})
        tried = send(browser, "/add", **find_form(shown, "try"))
        assert "nothing of it was kept" in tried
        assert "approves: " in tried
        assert read_rows() == {}
        form = find_form(tried, "add")
        after = send(browser, "/add", **form)
        assert "<title>books" in after
        row = read_rows()["books"]
        assert row["env"] == {"API_TOKEN": "${keyring:books.API_TOKEN}", "MODE": "<b>"}
        # The running gateway starts it, with the definitions that were tried.
        wait_for(lambda: "ready" in browser.get("/server?name=books"))
        wait_for(lambda: "books__" in browser.get("/tools"))
        assert "No changed tools" in browser.get("/changes")
        assert "too old" in send(browser, "/add", **form)
        again = send(browser, "/add", action="plan", **given)
        assert "there's a server 'books' already" in again


def test_an_entry_of_the_registry_is_added_as_it_was_shown(tmp_path: Path) -> None:
    remote = {"type": "streamable-http", "url": "https://127.0.0.1:9/mcp"}
    with mirror(entry("org.example/git", description=EVIL, remotes=[remote])) as (url, _):
        settings = Path(os.environ["HOME"]) / ".config/indus/settings.json"
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(json.dumps({"registry": {"url": url}}), encoding="utf-8")
        with opened(cwd=tmp_path) as browser:
            assert "Nothing found" in browser.get("/add?q=absent")
            shown = send(browser, "/add", **read_form(browser, "/add?q=git", "choose"))
            assert f"from: org.example/git of {url}" in shown
            assert read_rows() == {}
            assert "<title>git" in send(browser, "/add", **find_form(shown, "add"))
    row = read_rows()["git"]
    assert (row["url"], row["registry"]["name"]) == (remote["url"], "org.example/git")


def test_marked_servers_of_other_clients_are_imported_as_they_were_shown(tmp_path: Path) -> None:
    file = Path(os.environ["HOME"]) / ".claude.json"
    one = {"command": PYTHON[0], "args": [*PYTHON[1:], LIBRARY], "env": {"API_TOKEN": SECRET}}
    other = {"command": "true", "args": [EVIL], "env": {"<b>": EVIL}}
    file.write_text(json.dumps({"mcpServers": {"one": one, "other": other, EVIL: one}}), encoding="utf-8")
    with opened(cwd=tmp_path) as browser:
        assert "2 servers found in Claude Code" in browser.get("")
        text = browser.client.get("/ui/add").text
        assert SECRET not in text
        marks = re.findall(r'name="(mark\.[0-9a-f]{64})"', text)
        assert len(marks) == 2
        assert "no server has a mark" in send(browser, "/add", action="import")
        assert "look at it again" in send(browser, "/add", action="import", **{f"mark.{'0' * 64}": "1"})
        home = send(browser, "/add", action="import", **{marks[0]: "1"})
        assert "1 of 1 ready" in home or "0 of 1 ready" in home
        assert [*read_rows()] == ["one"]
        assert read_rows()["one"]["env"] == {"API_TOKEN": "${keyring:one.API_TOKEN}"}
        assert SECRET in file.read_text(encoding="utf-8")
        wait_for(lambda: "1 of 1 ready" in browser.get(""))


def test_a_row_is_changed_by_forms_that_belong_to_the_row_as_it_was_shown(tmp_path: Path) -> None:
    with opened(cwd=tmp_path, markup=markup()) as browser:
        wait_for(lambda: "ready" in browser.get("/server?name=markup"))
        stale = read_form(browser, "/row?name=markup", "set")
        path = "/row?name=markup"
        said = send(browser, path, **stale, variable="<i>KEY", value=SECRET, keep="")
        assert "'&lt;i&gt;KEY' can't be set" in said
        assert "API_KEY is set." in send(browser, path, **stale, variable="API_KEY", value=SECRET, keep="")
        assert "has changed since you looked" in send(browser, path, **stale, variable="KEY", value="x", keep="file")
        form = read_form(browser, path, "set")
        send(browser, path, **form, variable="MODE", value="plain", keep="file")
        assert read_rows()["markup"]["env"] == {"API_KEY": "${keyring:markup.API_KEY}", "MODE": "plain"}
        send(browser, path, **read_form(browser, path, "unset", variable="API_KEY"))
        assert read_rows()["markup"]["env"] == {"MODE": "plain"}
        assert "there is no sandbox profile" in send(browser, path, **read_form(browser, path, "sandbox"), sandbox=EVIL)
        wait_for(lambda: "markup__show" in browser.get("/tools"))
        tools = read_form(browser, path, "tools")
        kept = {f"tool.{name}": "1" for name in json.loads(tools["shown"]) if name != "show"}
        assert "tools are on" in send(browser, path, **tools, **kept)
        assert read_rows()["markup"]["exclude_tools"] == ["show"]
        wait_for(lambda: "markup__show" not in browser.get("/tools"))
        off = send(browser, path, **read_form(browser, path, "switch"))
        assert read_rows()["markup"]["enabled"] is False
        assert ">off</span>" in off
        send(browser, path, **read_form(browser, path, "switch"))
        assert "enabled" not in read_rows()["markup"]
        digest = read_form(browser, path, "remove")["digest"]
        assert "has changed since you looked" in send(browser, path, action="remove", digest="0" * 64)
        send(browser, path, action="remove", digest=digest)
        assert read_rows() == {}
        assert "No servers yet." in browser.get("/servers")


def test_a_client_is_connected_with_exactly_the_change_that_was_shown(tmp_path: Path) -> None:
    file = Path(os.environ["HOME"]) / ".claude.json"
    file.write_text(json.dumps({"mcpServers": {"x": {"command": "x", "env": {"API_TOKEN": SECRET}}}}), encoding="utf-8")
    path = "/client?name=claude-code"
    with opened("--no-mcp", cwd=tmp_path) as browser:
        assert browser.client.get("/ui/client?name=nobody").status_code == 404
        form = read_form(browser, path, "connect")
        assert SECRET not in browser.client.get(f"/ui{path}").text
        before = file.read_text(encoding="utf-8")
        file.write_text(f"{before}\n", encoding="utf-8")
        assert "has changed since you looked" in send(browser, path, **form)
        assert file.read_text(encoding="utf-8") == f"{before}\n"
        said = send(browser, path, **read_form(browser, path, "connect"))
        assert "Connected." in said
        assert "serve" in json.loads(file.read_text(encoding="utf-8"))["mcpServers"]["indus"]["args"]
        assert [one.read_text(encoding="utf-8") for one in file.parent.glob(".claude.json.*.bak")] == [f"{before}\n"]
        assert "connected" in browser.get("/connect")
        send(browser, path, **read_form(browser, path, "disconnect"))
        assert "indus" not in json.loads(file.read_text(encoding="utf-8"))["mcpServers"]


def test_settings_and_rules_are_checked_and_written_to_the_users_files(tmp_path: Path) -> None:
    settings = Path(os.environ["HOME"]) / ".config/indus/settings.json"
    with opened("--no-mcp", cwd=tmp_path) as browser:
        assert browser.client.get("/ui/settings?key=nothing").status_code == 404
        path = "/settings?key=calls.keep_days"
        form = read_form(browser, path, "set")
        assert "takes a whole number" in send(browser, path, **form, value=EVIL)
        assert not settings.exists()
        assert "calls.keep_days is saved" in send(browser, path, **form, value="7")
        assert json.loads(settings.read_text(encoding="utf-8")) == {"calls.keep_days": 7}
        assert "has changed since you looked" in send(browser, path, **form, value="8")
        assert "at its default" in send(browser, path, **read_form(browser, path, "unset"))
        assert json.loads(settings.read_text(encoding="utf-8")) == {}
        assert "is not a rule" in send(browser, "/rules", action="add", effect="deny", text=f"({EVIL}", place="")
        assert "there is no effect" in send(browser, "/rules", action="add", effect=EVIL, text="x", place="")
        assert "added" in send(browser, "/rules", action="add", effect="deny", text="notes__*", place="here")
        assert str(tmp_path) in browser.get("/rules")
        removal = read_form(browser, "/rules", "remove")
        assert "removed" in send(browser, "/rules", **removal)
        assert "isn't there any more" in send(browser, "/rules", **removal)
        assert "No rules yet." in browser.get("/rules")


def test_a_token_is_shown_once_and_replaced_or_ended_as_it_was_shown(tmp_path: Path) -> None:
    with opened("--no-mcp", cwd=tmp_path) as browser:
        given = {"action": "create", "view": "", "scopes": "indus:list indus:call", "expires": "7d"}
        assert "use letters, digits" in send(browser, "/tokens", **given, name=EVIL)
        said = send(browser, "/tokens", **given, name="phone")
        token = re.search(r"<code>(indus_\w+)</code>", said)
        assert token is not None
        assert token[1] not in browser.get("/tokens")
        stale = read_form(browser, "/tokens", "revoke")
        replaced = send(browser, "/tokens", **read_form(browser, "/tokens", "rotate"))
        assert token[1] not in replaced
        assert "<code>indus_" in replaced
        assert "has changed since you looked" in send(browser, "/tokens", **stale)
        assert "phone has ended" in send(browser, "/tokens", **read_form(browser, "/tokens", "revoke"))
        assert "revoked" in browser.get("/tokens")
