"""`indus serve --install` and `--uninstall`: a client's file, with nothing else changed in it."""

from __future__ import annotations

import json
import os
import shlex
import stat
import tomllib
from pathlib import Path

import pytest

from indusagi.core.config_file import read_config_file
from indusagi.core.json import JsonValue
from induscode.commands import program
from induscode.servers.clients import CLIENTS, Address, Entry, is_own_row
from induscode.servers.clients.install import InstallError, find_client_file, plan_install, plan_uninstall

pytestmark = pytest.mark.usefixtures("_started_as_indus")
_NAMES = [name for name in CLIENTS if name != "claude"]
_ENTRY = Entry(name="indus", command=("/opt/indus", "serve", "--profile", "none"))
_REMOTE = Entry(
    name="indus", command=("/opt/indus", "serve"), address=Address(url="http://127.0.0.1:7332/mcp", with_token=True)
)
_JSON_BEFORE = """// mine
{
    "theme": "dark", // as it is
    "KEY": {
        /* first */
        "other": { "command": "x", "args": ["a", "b",], },
    },
    "last": [1, 2]
}
"""
_TOML_BEFORE = """# mine
model = "o3" # as it is

[mcp_servers.other]
command = "x"

# about the next table
[mcp_servers.other.env]
A = '''
[mcp_servers.fake]
'''
"""


@pytest.fixture
def _started_as_indus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the entry name our command: a worker of pytest-xdist is started as `python -c`."""
    monkeypatch.setattr("sys.argv", ["/opt/bin/indus"])


def _before(client: str) -> str:
    if CLIENTS[client].is_toml:
        return _TOML_BEFORE
    return _JSON_BEFORE.replace("KEY", CLIENTS[client].keys[0])


def _file(client: str) -> Path:
    return Path(find_client_file(CLIENTS[client], os.environ))


def _put(client: str, text: str) -> Path:
    path = _file(client)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _servers(client: str, path: Path) -> dict[str, object]:
    document = read_config_file(str(path)).document
    assert isinstance(document, dict)
    found = document[CLIENTS[client].keys[0]]
    assert isinstance(found, dict)
    return dict(found)


def _indus(*words: str) -> int:
    return program.run(["serve", *words])


@pytest.mark.parametrize("client", _NAMES)
def test_finding_b7_an_entry_is_put_into_a_new_file(client: str) -> None:
    assert _indus("--install", client) == 0
    row = _servers(client, _file(client))["indus"]
    assert is_own_row(row)  # type: ignore[arg-type]
    assert stat.S_IMODE(_file(client).stat().st_mode) == 0o600


@pytest.mark.parametrize("client", _NAMES)
def test_finding_b7_everything_else_in_the_file_stays(client: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = _put(client, _before(client))
    path.chmod(0o640)
    assert _indus("--install", client, "--name", "my-deck") == 0
    said = capsys.readouterr().out
    after = path.read_text("utf-8")
    assert set(_servers(client, path)) == {"other", "my-deck"}
    missing = [one for one in _before(client).splitlines() if one.rstrip(", }") not in after]
    assert missing == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    (backup,) = path.parent.glob(f"{path.name}.*.bak")
    assert str(backup) in said
    assert backup.read_text("utf-8") == _before(client)
    assert _indus("--uninstall", client, "--name", "my-deck") == 0
    assert set(_servers(client, path)) == {"other"}
    now = read_config_file(str(path))
    path.write_text(_before(client), encoding="utf-8")
    assert now == read_config_file(str(path))


@pytest.mark.parametrize("client", _NAMES)
def test_finding_b7_doing_it_again_changes_nothing(client: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = _put(client, _before(client))
    for _ in range(2):
        assert _indus("--install", client) == 0
    assert "has server 'indus' already" in capsys.readouterr().out
    assert len([*path.parent.glob("*.bak")]) == 1
    for _ in range(2):
        assert _indus("--uninstall", client) == 0
    assert "has no server 'indus'" in capsys.readouterr().out
    assert _indus("--install", client, "--profile", "none") == 0
    assert _indus("--install", client, "--profile", "all") == 0
    assert "none" not in str(_servers(client, path)["indus"])


@pytest.mark.parametrize("client", _NAMES)
def test_finding_b7_a_dry_run_shows_the_change_and_writes_nothing(
    client: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _put(client, _before(client))
    assert _indus("--install", client, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "+" in shown
    assert "serve" in shown
    assert "theme" not in shown
    assert path.read_text("utf-8") == _before(client)
    assert [*path.parent.iterdir()] == [path]
    _put(client, "")
    path.unlink()
    assert _indus("--install", client, "--dry-run") == 0
    assert not path.exists()


@pytest.mark.parametrize("client", _NAMES)
def test_finding_b7_a_server_of_others_with_the_same_name_is_left_alone(
    client: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _put(client, _before(client).replace("other", "indus"))
    before = path.read_text("utf-8")
    assert _indus("--install", client) == 1
    assert "has another server 'indus': choose a name with --name" in capsys.readouterr().err
    assert _indus("--uninstall", client) == 1
    assert "is not one of ours" in capsys.readouterr().err
    assert path.read_text("utf-8") == before


@pytest.mark.parametrize("client", _NAMES)
@pytest.mark.parametrize("text", ["{", "[]", "= 1", '"x"', "\x00"])
def test_finding_b7_a_file_that_cannot_be_read_is_not_changed(
    client: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _put(client, text)
    if CLIENTS[client].is_toml and text == "[]":
        path.write_text("[", "utf-8")
    before = path.read_bytes()
    for flag in ("--install", "--uninstall"):
        assert _indus(flag, client) == 1
        assert str(path) in capsys.readouterr().err
    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]


def test_a_file_with_other_bytes_or_shapes_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    cursor = CLIENTS["cursor"]
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(InstallError, match="not UTF-8"):
        plan_install(cursor, _ENTRY, str(path))
    path.write_text('{"mcpServers": []}', encoding="utf-8")
    with pytest.raises(InstallError, match="mcpServers is not an object"):
        plan_install(cursor, _ENTRY, str(path))
    path.write_text('{"mcpServers": {}, "mcpServers": {}}', encoding="utf-8")
    with pytest.raises(InstallError, match="twice"):
        plan_install(cursor, _ENTRY, str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(InstallError, match="cannot be read"):
        plan_install(cursor, _ENTRY, str(path))


def test_a_table_that_is_written_inline_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('mcp_servers = { other = { command = "x" } }\n', encoding="utf-8")
    with pytest.raises(InstallError, match="paste what --print-config codex prints"):
        plan_install(CLIENTS["codex"], _ENTRY, str(path))


def test_a_table_between_others_is_replaced_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        '[mcp_servers."indus"]\ncommand = "/old/indus"\nargs = ["serve"]\n'
        '[mcp_servers.indus.env]\nA = "b"\n\n# kept\n[other]\nx = [\n  "[y]",\n]\n',
        encoding="utf-8",
    )
    change = plan_install(CLIENTS["codex"], _ENTRY, str(path))
    change.apply()
    text = path.read_text("utf-8")
    assert text.startswith("[mcp_servers.indus]\ncommand")
    assert text.endswith('\n# kept\n[other]\nx = [\n  "[y]",\n]\n')
    assert tomllib.loads(text)["mcp_servers"]["indus"]["command"] == "/opt/indus"
    plan_uninstall(CLIENTS["codex"], "indus", str(path)).apply()
    assert tomllib.loads(path.read_text("utf-8")) == {"other": {"x": ["[y]"]}}


def test_a_mark_at_the_start_and_a_link_are_kept(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.json"
    real.write_text("\ufeff{}", encoding="utf-8")
    link = _file("cursor")
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    assert _indus("--install", "cursor") == 0
    assert link.is_symlink()
    assert real.read_text("utf-8").startswith("\ufeff{")
    assert _indus("--uninstall", "cursor") == 0


def test_a_file_that_changes_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    change = plan_install(CLIENTS["cursor"], _ENTRY, str(path))
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(InstallError, match="changed since you looked"):
        change.apply()
    assert path.read_text("utf-8") == "{}"


def test_what_vscode_asks_for_comes_and_goes_with_the_entry(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"inputs": [{"id": "x"}], "servers": {}}', encoding="utf-8")
    plan_install(CLIENTS["vscode"], _REMOTE, str(path)).apply()
    document = read_config_file(str(path)).document
    assert isinstance(document, dict)
    inputs = document["inputs"]
    assert isinstance(inputs, list)
    assert [one.get("id") for one in inputs if isinstance(one, dict)] == ["x", "indus-token"]
    assert plan_install(CLIENTS["vscode"], _REMOTE, str(path)).is_empty
    plan_uninstall(CLIENTS["vscode"], "indus", str(path)).apply()
    assert json.loads(path.read_text("utf-8")) == {"inputs": [{"id": "x"}], "servers": {}}


@pytest.mark.parametrize("client", _NAMES)
def test_an_address_is_installed_where_the_client_has_words_for_it(
    client: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = _indus("--http", "7332", "--install", client)
    said = capsys.readouterr().err
    if client in {"claude-desktop", "zed"}:
        assert code == 2
        assert CLIENTS[client].title in said
        return
    assert code == 0
    assert "the gateway must run" in said
    assert _indus("--uninstall", client) == 0
    assert _servers(client, _file(client)) == {} if not CLIENTS[client].is_toml else True


def test_an_address_without_a_token_is_known_by_itself() -> None:
    words = ("--http", "7332", "--no-token")
    assert _indus(*words, "--install", "zed") == 0
    assert _indus("--uninstall", "zed") == 1
    assert _indus(*words, "--uninstall", "zed") == 0
    assert _servers("zed", _file("zed")) == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--install", "codex", "--uninstall", "codex"), "--install and --uninstall can't be used"),
        (("--install", "codex", "--print-config", "codex"), "--print-config and --install can't be used"),
        (("--dry-run", "--print-config", "codex"), "--dry-run and --print-config can't be used together"),
        (("--uninstall", "codex", "--profile", "all"), "--profile and --uninstall can't be used together"),
        (("--uninstall", "codex", "--mcp", "x"), "--mcp and --uninstall can't be used together"),
        (("--install", "codex", "--http", "0"), "--install needs a fixed port"),
        (("--install", "nobody"), "'nobody' is not one of"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _indus(*words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "ours"),
    [
        ({"command": "/x/indus", "args": ["serve"]}, True),
        ({"command": "/x/indusr", "args": ["serve", "--mcp", "a"]}, True),
        ({"command": "/x/python", "args": ["-m", "induscode", "serve"]}, True),
        ({"command": ["/x/indus", "serve"]}, True),
        ({"command": "/x/indus", "args": ["tools"]}, False),
        ({"command": "/x/other", "args": ["serve"]}, False),
        ({"command": 3}, False),
        ({"url": "http://h/", "headers": {"A": "${INDUS_SERVE_TOKEN}"}}, True),
        ({"url": "http://h/"}, False),
        ({}, False),
        (3, False),
    ],
)
def test_our_own_row_is_known(row: object, ours: bool) -> None:
    assert is_own_row(row) is ours  # type: ignore[arg-type]


@pytest.mark.parametrize("words", [(), ("--http", "7332"), ("--http", "7332", "--no-token")])
@pytest.mark.parametrize("client", ["claude", "codex", "gemini", "opencode"])
def test_finding_b7_the_printed_command_has_what_the_clients_own_command_takes(
    client: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _indus(*words, "--print-config", client) == 0
    said = capsys.readouterr()
    (line,) = [one for one in said.err.splitlines() if one.startswith(f"indus: or: {client} ")]
    command = shlex.split(line.removeprefix("indus: or: "))
    assert command[1:3] in (["mcp", "add"], ["mcp", "add-json"])
    if client == "claude":
        document = json.loads(said.out)["mcpServers"]
        assert command[3:6] == ["--scope", "user", "indus"]
        assert json.loads(command[6]) == document["indus"]
    elif words:
        assert "http://127.0.0.1:7332/mcp" in command
        assert ("INDUS_SERVE_TOKEN" in line) is ("--no-token" not in words)
    else:
        assert "serve" in command[command.index("--") :]


@pytest.mark.parametrize(
    "words",
    [
        "indus serve",
        "/opt/bin/indusr serve --profile none",
        "indus --mcp a.json serve",
        "indus-deck serve",
        "uvx indus-deck serve",
        "uvx indus-deck@1.2 serve",
        "uvx --from indus-deck[all]==1.2 indus serve",
        "uv tool run indus-deck serve",
        "uv run --with indus-deck indus serve",
        "pipx run indus-deck serve",
        "python3 -m induscode serve",
        "/venv/bin/python -I -m induscode.__main__ serve",
        "env A=1 indus serve",
        r"C:\\bin\\indus.exe serve",
    ],
)
def test_finding_a8_gateway_is_known_under_any_launcher(words: str) -> None:
    command, *rest = words.split()
    args: list[JsonValue] = [*rest]
    assert is_own_row({"command": command, "args": args})
    assert is_own_row({"type": "local", "command": [command, *args]})
    assert is_own_row({"command": {"path": command, "args": args}})
    assert is_own_row({"command": "sh", "args": ["-lc", f"cd /x && exec {words.replace(chr(92), '/')}"]})


@pytest.mark.parametrize(
    "words", ["indus mcp list", "serve indus", "my-indus serve", "npx -y serve", "python -m induscoder serve", "uvx x"]
)
def test_finding_a8_other_commands_are_not_the_gateway(words: str) -> None:
    command, *args = words.split()
    assert not is_own_row({"command": command, "args": [*args]})


@pytest.mark.parametrize("client", _NAMES)
def test_finding_a8_import_leaves_out_our_own_gateway(
    client: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in ((), ("--http", "--name", "over-http"), ("--http", "--no-token", "--name", "open")):
        program.run(["serve", *flags, "--install", client])  # some clients cannot express HTTP
    capsys.readouterr()
    assert program.run(["mcp", "import", "--from", CLIENTS[client].program, "-C", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.out == "No servers were found.\n"
    assert "server 'indus' of " in said.err
    assert "left out: it's this gateway itself" in said.err


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--mcp", "nofile.json"), "--mcp nofile.json: no such file or directory"),
        (("--mcp", "broken.json"), "broken.json:1:2: invalid JSON"),
        (("--transparent", "nothing"), "There is no server 'nothing'"),
        (("--tools", "nothing"), "there is no capability 'nothing'"),
    ],
)
@pytest.mark.parametrize("action", ["--install", "--print-config"])
def test_finding_a9_entry_that_could_not_start_is_not_installed(
    action: str, flags: tuple[str, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    assert program.run(["serve", *flags, action, "cursor", "-C", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert (said.out, reason in said.err) == ("", True), said
    assert not _file("cursor").exists()
