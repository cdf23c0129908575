"""Every entry of the tables in `core.secrets`, tried by everything that must refuse it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from tests.support.sandboxes import skip_without
from tests.support.tools import box_of, call, context

from indusagi.capabilities.files.policy import workspace_policy
from indusagi.capabilities.local.fs import LocalFs
from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.ports import PathRefused
from indusagi.capabilities.sandbox.bubblewrap import PrivateDir, bubblewrap_argv
from indusagi.capabilities.sandbox.landlock_run import landlock_abi
from indusagi.capabilities.sandbox.policy import Sandbox, resolve_layout
from indusagi.capabilities.tools.find import find_tool
from indusagi.capabilities.tools.grep import grep_tool
from indusagi.core import secrets as places
from indusagi.core.secrets import find_credential_places

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from indusagi.capabilities.sandbox.policy import Mechanism
    from indusagi.core.json import JsonObject

pytestmark = [pytest.mark.anyio, pytest.mark.process]
TEXT = "pelican"
SCOPES_ABI = 6
NAMED = sorted(places._NAMED_BY)
PYTHON = os.path.realpath(sys.executable)
"""The interpreter behind the virtual environment: a clone below `/tmp` is out of sight in the sandbox."""
READ_ALL = """
import json, sys
for path in json.load(open(sys.argv[1])):
    try:
        if open(path).read():
            print(path)
    except OSError:
        pass
"""


@pytest.fixture(params=["bubblewrap", "landlock"])
def mechanism(request: pytest.FixtureRequest) -> Mechanism:
    skip_without(request.param)
    return request.param


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home that commands can see: the sandbox has a `/tmp` of its own."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        home = Path(folder).resolve() / "home"
        home.mkdir()
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "settings"))
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        for name in NAMED:
            monkeypatch.setenv(name, str(home / "named" / name))
        yield home


def list_places(home: Path) -> list[str]:
    found = dict.fromkeys(find_credential_places(os.environ, str(home)))
    return [place for place in found if place.startswith(str(home))]


def fill(home: Path, kind: str) -> list[str]:
    """Make every credential place a file, or a directory with a file; return the files."""
    listed = list_places(home)
    made: list[str] = []
    for place in listed:
        is_above = any(other.startswith(f"{place}/") for other in listed)
        path = Path(place) / "inner" if kind == "directory" or is_above else Path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEXT, encoding="utf-8")
        made.append(str(path))
    return made


@pytest.mark.parametrize("kind", ["file", "directory"])
async def test_finding_f10_no_file_tool_reads_or_writes_a_credential(home: Path, kind: str) -> None:
    made = fill(home, kind)
    assert len(made) > 200
    fs = LocalFs(str(home), workspace_policy(str(home)))
    for path in made:
        with pytest.raises(PathRefused, match="protected"):
            await fs.read_text(path)
        with pytest.raises(PathRefused, match="protected"):
            await fs.write_file(path, "changed")
    box = box_of(context(home), grep_tool(), find_tool())
    searches: tuple[tuple[str, JsonObject], ...] = (
        ("grep", {"pattern": TEXT, "mode": "files", "noIgnore": True}),
        ("find", {"query": "inner", "noIgnore": True, "hidden": True}),
    )
    for name, given in searches:
        outcome = await call(box, name, given)
        lines = {line for line in str(outcome.output).splitlines() if not line.startswith("[")}
        assert not lines & {path.removeprefix(f"{home}/") for path in made}


@pytest.mark.parametrize("kind", ["file", "directory"])
@pytest.mark.parametrize("work", ["home", "project"])
async def test_finding_f10_no_sandboxed_command_reads_a_credential(
    home: Path, mechanism: Mechanism, kind: str, work: str
) -> None:
    made = fill(home, kind)
    folder = home if work == "home" else home / "project"
    folder.mkdir(exist_ok=True)
    (folder / "plain").write_text(TEXT, encoding="utf-8")
    (folder / "paths.json").write_text(json.dumps([*made, str(folder / "plain")]), encoding="utf-8")
    (folder / "read.py").write_text(READ_ALL, encoding="utf-8")
    shell = LocalShell(str(folder), sandbox=Sandbox(mechanisms=(mechanism,)))
    result = await shell.exec(f"{shlex.quote(PYTHON)} -S read.py paths.json")
    await shell.aclose()
    assert result.output.decode().splitlines() == [str(folder / "plain")]


@pytest.mark.parametrize(
    "place",
    [".mozilla", ".config/google-chrome", ".bash_history", ".env", ".npmrc", ".config/rclone", ".git-credentials"],
)
async def test_finding_r3_browser_data_histories_and_env_files_are_hidden(
    home: Path, mechanism: Mechanism, place: str
) -> None:
    """The places that the review had read from sandboxed commands."""
    path = home / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TEXT, encoding="utf-8")
    work = home / "project"
    work.mkdir()
    shell = LocalShell(str(work), sandbox=Sandbox(mechanisms=(mechanism,)))
    result = await shell.exec(f"cat {path}")
    await shell.aclose()
    assert TEXT not in result.output.decode()


def test_variables_that_name_common_directories_hide_nothing_else(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMED:
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("GNUPGHOME", str(home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp")
    hidden = resolve_layout(Sandbox(), "/usr").hidden
    assert not {"/dev/null", "/tmp", str(home)} & {*hidden}


# -- sockets --------------------------------------------------------------------------------------

REACH = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1].replace('@', chr(0))); print('reached')"
FORMS = {
    "SSH_AUTH_SOCK": "{}",
    "DOCKER_HOST": "unix://{}",
    "CONTAINER_HOST": "unix:{}",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path={},guid=0123",
    "DBUS_SYSTEM_BUS_ADDRESS": "unix:abstract=/nowhere;unix:path={}",
    "GPG_AGENT_INFO": "{}:0:1",
    "TMUX": "{},1234,0",
    "VSCODE_IPC_HOOK_CLI": "{}",
    "SOMETHING_ELSE": "{}",
}


async def reach(work: Path, sandbox: Sandbox, address: str) -> bool:
    shell = LocalShell(str(work), sandbox=sandbox)
    result = await shell.exec(f"{shlex.quote(PYTHON)} -S -c {shlex.quote(REACH)} {shlex.quote(address)}")
    await shell.aclose()
    return result.output.strip() == b"reached"  # a traceback has the program's text since Python 3.13


@contextmanager
def listening(path: Path) -> Generator[None]:
    """Listen at a path, bound by a relative name: sandboxes of other tests don't find that in the system's table."""
    before = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    try:
        server = socket.socket(socket.AF_UNIX)
        server.bind(path.name)
    finally:
        os.fchdir(before)
        os.close(before)
    with server:
        server.listen()
        yield


@pytest.mark.parametrize("variable", FORMS)
async def test_finding_r3_sockets_that_variables_name_are_out_of_reach(
    home: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without("bubblewrap")
    work = home / "project"
    work.mkdir()
    path = home / "agent.sock"
    with listening(path):
        assert await reach(work, Sandbox(mechanisms=("bubblewrap",)), str(path))
        monkeypatch.setenv(variable, FORMS[variable].format(path))
        assert not await reach(work, Sandbox(mechanisms=("bubblewrap",)), str(path))
        shell = LocalShell(str(work), sandbox=Sandbox(mode="off"))
        shown = await shell.exec(f"echo ${variable}")
        await shell.aclose()
        assert shown.output == b"\n"


async def test_finding_r3_every_socket_of_the_user_outside_the_workspace_is_out_of_reach(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without("bubblewrap")
    work = home / "project"
    work.mkdir()
    paths = [home / "unknown.sock", work / "own.sock"]
    table = home / "table"
    row = "0000000000000000: 00000002 00000000 00010000 0001 01 12345 {}\n"
    table.write_text("Num RefCount\n" + "".join(map(row.format, (*paths, home / "gone.sock"))), encoding="utf-8")
    monkeypatch.setattr(places, "_SOCKET_TABLE", str(table))
    monkeypatch.setattr(places, "_SETTLED_S", -60.0)
    with listening(paths[0]), listening(paths[1]):
        sandbox = Sandbox(mechanisms=("bubblewrap",))
        assert [await reach(work, sandbox, str(path)) for path in paths] == [False, True]


def test_a_socket_that_vanishes_before_the_start_is_left_out(home: Path) -> None:
    layout = replace(resolve_layout(Sandbox(), str(home)), hidden=("/var/tmp/indus-absent/agent.sock", "/etc/shadow"))
    argv = bubblewrap_argv(("bwrap",), layout, (), PrivateDir(str(home / "private")), str(home))
    assert "/etc/shadow" in argv
    assert "/var/tmp/indus-absent/agent.sock" not in argv


def test_finding_r3_the_systems_table_names_our_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.setattr(places, "_SETTLED_S", 1.0)
        path = str(tmp_path / "s")  # below the /tmp that no sandbox sees
        server.bind(path)
        now_s = os.stat(path).st_mtime
        assert path not in places.find_sockets_of_user(now_s)
        assert path in places.find_sockets_of_user(now_s + 1)
    monkeypatch.setattr(places, "_SOCKET_TABLE", str(tmp_path / "absent"))
    assert not [*places.find_sockets_of_user(now_s + 1)]


async def test_finding_r3_abstract_sockets_are_out_of_reach(home: Path, mechanism: Mechanism) -> None:
    if landlock_abi() < SCOPES_ABI:
        pytest.skip("this kernel has no Landlock scopes")
    work = home / "project"
    work.mkdir()
    name = f"indus-{os.getpid()}-{mechanism}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        assert await reach(work, Sandbox(mode="off"), f"@{name}")
        assert not await reach(work, Sandbox(mechanisms=(mechanism,)), f"@{name}")
        # The thread that started the command was restricted, and no other.
        for _ in range(20):
            connect = asyncio.to_thread(_connect, f"\0{name}")
            await connect


def _connect(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)


async def test_a_socket_that_the_user_allows_stays_in_reach(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without("bubblewrap")
    work = home / "project"
    work.mkdir()
    path = home / "agent.sock"
    with listening(path):
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        shell = LocalShell(str(work), sandbox=Sandbox(mechanisms=("bubblewrap",)), allowed_variables=["SSH_AUTH_SOCK"])
        command = f"{shlex.quote(PYTHON)} -S -c {shlex.quote(REACH)} $SSH_AUTH_SOCK"
        result = await shell.exec(command)
        await shell.aclose()
    assert result.output == b"reached\n"
