"""What a hostile server can do in the sandbox of each profile. One start tries everything."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.sandboxes import offer_bubblewrap, skip_without
from tests.support.scripts import unmeasured
from tests.support.waiting import LIMIT_S

from indusagi.capabilities.ports import SandboxMissing
from indusagi.capabilities.sandbox.egress import EgressProxy
from indusagi.capabilities.sandbox.profile import ServerProfile, parse_profile, server_home
from indusagi.capabilities.sandbox.server import prepare_server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.capabilities.sandbox.server import ServerSandbox
    from indusagi.core.json import JsonValue

pytestmark = pytest.mark.process

HOSTILE = r"""
import ctypes, json, os, socket, sys
given = json.loads(sys.argv[1])
home = os.path.expanduser("~")
done = {}
def attempt(name, act):
    try:
        result = act()
        done[name] = "ok" if result is None else result
    except BaseException as exc:
        done[name] = type(exc).__name__
def read(path):
    return lambda: open(path, "rb").read() and None
def write(path):
    def act():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "a").write("owned")
    return act
def connect(family, address, kind=socket.SOCK_STREAM):
    def act():
        with socket.socket(family, kind) as one:
            one.settimeout(2)
            one.connect(address)
            if kind == socket.SOCK_DGRAM:
                one.send(b"secret")
    return act
for name, path in given["read"].items():
    attempt("read " + name, read(path))
for name, path in given["write"].items():
    attempt("write " + name, write(path))
attempt("tcp", connect(socket.AF_INET, ("127.0.0.1", given["port"])))
attempt("udp", connect(socket.AF_INET, ("127.0.0.1", given["udp"]), socket.SOCK_DGRAM))
attempt("metadata", connect(socket.AF_INET, ("169.254.169.254", 80)))
attempt("unix", connect(socket.AF_UNIX, given["unix"]))
attempt("abstract", connect(socket.AF_UNIX, "\0" + given["abstract"]))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close())
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3).close())
attempt("outer process", lambda: os.kill(given["pid"], 0))
attempt("environ of others", lambda: [n for n in os.listdir("/proc") if n.isdigit()
    and b"CANARY_OUTSIDE" in open(f"/proc/{n}/environ", "rb").read()] and None or "nothing")
libc = ctypes.CDLL(None, use_errno=True)
attempt("ptrace", lambda: None if libc.ptrace(16, given["pid"], 0, 0) == 0 else "refused")
attempt("mount", lambda: None if libc.mount(b"none", b"/mnt", b"tmpfs", 0, None) == 0 else "refused")
attempt("user namespace", lambda: None if libc.unshare(0x10000000) == 0 else "refused")
attempt("keep", lambda: open(os.path.join(home, "kept"), "a").write("1") and None)
attempt("variable", lambda: os.environ.get("DISPLAY", "nothing"))
print(json.dumps(done))
"""


@pytest.fixture
def sandboxed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with secrets, a project, and another one."""
    home = tmp_path / "home"
    for name in (
        ".ssh/id_ed25519",
        ".aws/credentials",
        ".config/gh/hosts.yml",
        "other/.env",
        ".npmrc",
        ".bash_history",
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("secret")
    (home / "project/.git/hooks").mkdir(parents=True)
    (home / "project/notes.txt").write_text("mine")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("CANARY_OUTSIDE", "1")
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    offer_bubblewrap(tmp_path / "bin", monkeypatch)
    return home


def find_nothing(_: str) -> tuple[tuple[str, ...], str]:
    """Find no bubblewrap."""
    return (), "none"


def prepare(profile: JsonValue, home: Path, *argv: str, cwd: Path | None = None) -> ServerSandbox:
    parsed = parse_profile(profile)
    assert parsed is not None
    folder = str(cwd or home / "project")
    return prepare_server(parsed, "lib", argv, unmeasured(), {}, folder)


def run(sandbox: ServerSandbox, cwd: Path | None = None) -> tuple[str, str]:
    """Run a prepared server to its end; return its output and errors."""
    try:
        done = subprocess.run(
            sandbox.argv,
            env=sandbox.env,
            pass_fds=sandbox.handles,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=cwd,
            timeout=LIMIT_S,
            check=False,
        )
    finally:
        sandbox.remove()
    return done.stdout.decode(), done.stderr.decode()


STOPPED_BY_BOTH = (
    *("read ssh key", "read cloud", "read cli", "read npm", "read history", "read other project", "read state"),
    *("write hook", "write cron", "write system", "write program"),
    *("unix", "outer process", "environ of others", "ptrace", "mount", "user namespace", "packet", "raw"),
)
STOPPED_BY_STRICT = ("tcp", "metadata", "abstract", "write project", "read temporary")


@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_a_hostile_server_gets_nothing_its_profile_does_not_name(profile: str, sandboxed: Path) -> None:
    skip_without("bubblewrap")
    home, state = sandboxed, sandboxed / ".local/state/indus"
    state.mkdir(parents=True)
    (state / "trust.json").write_text("secret")
    read = {
        "ssh key": home / ".ssh/id_ed25519",
        "cloud": home / ".aws/credentials",
        "cli": home / ".config/gh/hosts.yml",
        "npm": home / ".npmrc",
        "history": home / ".bash_history",
        "other project": home / "other/.env",
        "state": state / "trust.json",
        "project": home / "project/notes.txt",
        "temporary": "/etc/hostname",
    }
    write = {
        "hook": home / "project/.git/hooks/pre-commit",
        "cron": "/var/spool/cron/crontabs/me",
        "our state": state / "trust.json",
        "system": "/etc/profile.d/x.sh",
        "program": "/usr/local/bin/x",
        "shell start-up": home / ".bashrc",
        "other project": home / "other/.env",
        "project": home / "project/new.txt",
    }
    abstract = f"indus-test-{os.getpid()}"
    with ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.socket(family)) for family in (socket.AF_INET, socket.AF_UNIX, socket.AF_UNIX)
        ]
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        agent = str(home / "agent.sock")
        for one, address in zip(
            (*listeners, datagrams), (("127.0.0.1", 0), agent, f"\0{abstract}", ("127.0.0.1", 0)), strict=True
        ):
            one.bind(address)
        for one in listeners:
            one.listen()
        given: dict[str, Any] = {
            "read": {name: str(path) for name, path in read.items()},
            "write": {name: str(path) for name, path in write.items()},
            "port": listeners[0].getsockname()[1],
            "udp": datagrams.getsockname()[1],
            "unix": agent,
            "abstract": abstract,
            "pid": os.getpid(),
        }
        before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
        sandbox = prepare(profile, home, sys.executable, "-c", HOSTILE, json.dumps(given))
        output, errors = run(sandbox)
        datagrams.setblocking(False)
        with pytest.raises(BlockingIOError) if profile == "strict" else ExitStack():
            datagrams.recv(100)
    assert errors == ""
    done = json.loads(output)
    allowed = sorted(name for name, outcome in done.items() if outcome == "ok")
    stopped = {*STOPPED_BY_BOTH, *(STOPPED_BY_STRICT if profile == "strict" else ())}
    assert [name for name in allowed if name in stopped] == []
    # What a server may do works.
    assert {"read project", "keep"} <= {*allowed}
    assert ("write project" in allowed) is (profile == "standard")
    assert done["variable"] == "nothing"
    # Nothing of yours has changed, whatever it believes it has written.
    private = server_home("lib")
    after = {
        path: path.read_bytes() for path in home.rglob("*") if path.is_file() and not str(path).startswith(private)
    }
    new = {path for path in after if after[path] != before.get(path)}
    assert new == ({home / "project/new.txt"} if profile == "standard" else set())
    assert (home / "project/.git/hooks").is_dir()


def test_the_home_of_a_server_lasts_and_is_its_own(sandboxed: Path) -> None:
    skip_without("bubblewrap")
    for expected in ("a\n", "a\na\n"):
        sandbox = prepare("standard", sandboxed, "/bin/sh", "-c", "echo a >>~/kept; cat ~/kept")
        output, _ = run(sandbox)
        assert output == expected
    assert not (sandboxed / "kept").exists()


def test_a_path_that_is_not_allowed_any_more_leaves_no_empty_file_in_its_place(sandboxed: Path) -> None:
    skip_without("bubblewrap")
    for name in ("papers/of/mine.txt", "drawings/one.txt"):
        (sandboxed / name).parent.mkdir(parents=True)
        (sandboxed / name).write_text("mine")
    script = "cat ~/papers/of/mine.txt ~/drawings/one.txt; ls -A ~; echo x >~/own"
    wider: JsonValue = {"profile": "standard", "read": ["~/papers/of/mine.txt", "~/drawings"]}
    output, errors = run(prepare(wider, sandboxed, "/bin/sh", "-c", script))
    assert (output, errors) == ("minemine" + "drawings\npapers\nproject\n", "")
    output, errors = run(prepare("standard", sandboxed, "/bin/sh", "-c", script))
    assert output == "own\nproject\n"
    assert errors.count("No such file or directory") == 2
    # While another process uses the home, its mount points stay.
    other, own = (prepare(wider, sandboxed, "/bin/true") for _ in range(2))
    own.remove()
    assert (Path(server_home("lib")) / "papers/of/mine.txt").is_file()
    other.remove()
    assert [path.name for path in Path(server_home("lib")).iterdir()] == ["own"]


@pytest.mark.parametrize("mechanism", ["bubblewrap", "landlock"])
@pytest.mark.parametrize("place", ["", "project/temporary"])
def test_a_server_reaches_no_temporary_file_and_no_proxy_of_another(
    mechanism: str, place: str, sandboxed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without(mechanism)
    if mechanism == "landlock":
        if place:
            pytest.skip("Landlock can't hide a part of a writable directory")
        monkeypatch.setattr("indusagi.capabilities.sandbox.backend._find_bubblewrap", find_nothing)
    # Not below /tmp, in whose place a sandbox puts its own.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        (Path(folder) / "project/temporary").mkdir(parents=True)
        temporary = Path(folder) / place
        (temporary / "secret").write_text("mine")
        monkeypatch.setattr("tempfile.tempdir", str(temporary))
        monkeypatch.setenv("PLACE", str(temporary))
        script = 'cat "$PLACE/secret"; ls "$PLACE"/*/tmp'
        cwd = Path(folder) / "project" if place else sandboxed / "project"
        output, errors = run(prepare("standard", sandboxed, "/bin/sh", "-c", script, cwd=cwd))
    assert output == ""
    assert f"{temporary}/secret" in errors


@pytest.mark.parametrize("key", ["read", "write"])
def test_a_link_that_takes_the_place_of_a_path_before_it_is_mounted_leads_nowhere(key: str, sandboxed: Path) -> None:
    skip_without("bubblewrap")
    data = sandboxed / "project/data"
    data.mkdir()
    run(prepare("standard", sandboxed, "/bin/mkdir", str(sandboxed / ".ssh")))  # in its own home
    script = "cat data/id_ed25519; touch data/new"
    sandbox = prepare({"profile": "standard", key: ["data"]}, sandboxed, "/bin/sh", "-c", script)
    # As another server in this workspace would do.
    data.rename(data.with_name("moved"))
    data.symlink_to("../.ssh")
    output, _ = run(sandbox)
    assert output == ""
    assert [path.name for path in (sandboxed / ".ssh").iterdir()] == ["id_ed25519"]


def test_paths_that_a_row_names_are_there_and_its_secrets_are_not(sandboxed: Path) -> None:
    skip_without("bubblewrap")
    docs = sandboxed / "docs"
    docs.mkdir()
    script = "echo x > $0/new; cat ~/.ssh/id_ed25519; ls ~"
    profiles: list[tuple[JsonValue, bool]] = [
        ("standard", True),
        ("strict", False),
        ({"profile": "strict", "write": [str(docs)]}, True),
    ]
    for profile, writes in profiles:
        sandbox = prepare(profile, sandboxed, "/bin/sh", "-c", script, str(docs))
        output, errors = run(sandbox)
        assert ("docs" in output, (docs / "new").exists()) == (True, writes), errors
        assert "secret" not in output
        (docs / "new").unlink(missing_ok=True)


@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_packages_installed_beside_a_script_are_there(profile: str, sandboxed: Path) -> None:
    skip_without("bubblewrap")
    modules = sandboxed / "tools/node_modules"
    script = modules / "@author/server/dist/index.js"
    script.parent.mkdir(parents=True)
    (modules / "dependency").mkdir()
    (modules / "dependency/index.js").write_text("there")
    script.write_text(f"print(open({str(modules / 'dependency/index.js')!r}).read())")
    sandbox = prepare(profile, sandboxed, sys.executable, "-I", "-S", str(script))
    assert sandbox.argv.count(str(script)) == 1  # mounted along with them
    assert run(sandbox) == ("there\n", "")


async def test_hosts_are_reached_through_the_proxy_and_nothing_else_is(sandboxed: Path) -> None:
    skip_without("bubblewrap")
    script = """
import os, socket, urllib.request
port, = [int(word) for word in os.environ["PORTS"].split()]
def fetch(url):
    try:
        return urllib.request.urlopen(url, timeout=30).read().decode()
    except OSError as exc:
        return str(exc)
print(fetch(f"http://named.example:{port}/"), "|", fetch("http://other.example/"))
try:
    socket.create_connection(("127.0.0.1", port), 2)
except OSError as exc:
    print(type(exc).__name__)
"""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nseen")
        await writer.drain()
        writer.close()

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    blocked: list[str] = []
    upstream = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = upstream.sockets[0].getsockname()[1]
    profile = ServerProfile(name="strict", hosts=(f"named.example:{port}",))
    env = {**os.environ, "PORTS": str(port)}
    sandbox = await asyncio.to_thread(
        prepare_server, profile, "lib", [sys.executable, "-c", script], env, {"PORTS": str(port)}, str(sandboxed)
    )
    proxy = EgressProxy(profile, resolve, lambda _: "public", blocked.append)
    assert sandbox.socket_path is not None
    await proxy.open(sandbox.socket_path)
    try:
        output, errors = await asyncio.to_thread(run, sandbox)
    finally:
        await proxy.aclose()
        upstream.close()
    refused = 'other.example:80 isn\'t one of the "hosts" of this server\'s "sandbox"'
    assert output == f"seen | HTTP Error 403: {refused}\nConnectionRefusedError\n", errors
    assert blocked == ["other.example:80"]


def test_a_killed_sandbox_leaves_no_process(sandboxed: Path) -> None:
    skip_without("bubblewrap")
    sandbox = prepare("standard", sandboxed, "/bin/sh", "-c", "sleep 1000 & echo started; exec sleep 1000")
    with subprocess.Popen(sandbox.argv, env=sandbox.env, stdout=subprocess.PIPE, pass_fds=sandbox.handles) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.kill()
        assert process.stdout.read() == b""  # the pipe ends with its last holder
    sandbox.remove()


def test_landlock_holds_standard_where_bubblewrap_is_missing(sandboxed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without("landlock")
    monkeypatch.setattr("indusagi.capabilities.sandbox.backend._find_bubblewrap", find_nothing)
    script = "cat ~/../../../../.ssh/id_ed25519 $0; echo x > ~/kept && cat ~/kept; cat notes.txt; echo x > $0"
    secret = str(sandboxed / ".ssh/id_ed25519")
    sandbox = prepare("standard", sandboxed, "/bin/sh", "-c", script, secret)
    assert sandbox.mechanism == "landlock"
    output, errors = run(sandbox, sandboxed / "project")
    assert output == "x\nmine"
    assert "Permission denied" in errors
    refused: list[JsonValue] = ["strict", {"hosts": ["a.example"]}]
    for profile in refused:
        with pytest.raises(SandboxMissing, match="need bubblewrap"):
            prepare(profile, sandboxed, "true")
    monkeypatch.setattr("indusagi.capabilities.sandbox.backend._find_landlock", lambda: (0, "none"))
    with pytest.raises(SandboxMissing, match='set its "sandbox" to off'):
        prepare("standard", sandboxed, "true")
