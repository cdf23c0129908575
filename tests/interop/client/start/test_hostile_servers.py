"""What hostile servers get in the sandbox of each profile. Each attempt first succeeds without a sandbox.

One start tries everything. The attempts, and where each one succeeds, are in `tests/support/hostile.py`.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.hostile import ATTEMPTS, format_table, split_page
from tests.support.opened import opened
from tests.support.sandboxes import offer_bubblewrap, skip_without
from tests.support.servers import SERVERS, STEADY
from tests.support.waiting import LIMIT_S

from indusagi.capabilities.sandbox.profile import parse_profile
from indusagi.core import secrets as places
from indusagi.core.json import is_json_object
from indusagi.interop import StdioServerConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.hostile import Attempt

    from indusagi.core.json import JsonValue

pytestmark = pytest.mark.process

SCRIPT = str(SERVERS / "hostile.py")
SECRETS = (
    *(".ssh/id_ed25519", ".aws/credentials", ".azure/msal_token_cache.json", ".kube/config", ".npmrc", ".bash_history"),
    *(".config/gcloud/application_default_credentials.json", ".config/gh/hosts.yml", "other/.env"),
    *(".mozilla/firefox/a.default/cookies.sqlite", ".config/google-chrome/Default/Cookies"),
    *(".local/share/keyrings/login.keyring", ".gnupg/private-keys-v1.d/a.key", "Documents/letter.txt"),
    *(".local/state/indus/credentials/a.json", ".local/state/indus/ledger.db"),
    *(".local/state/indus/servers/other-1/token", "project/secrets/account.json"),
)
_ADD_KEY, _KEYCTL, _UNLINK = (248, 250, 9) if os.uname().machine == "x86_64" else (217, 219, 9)
_SESSION = -3


def find_nothing(_: str) -> tuple[tuple[str, ...], str]:
    """Find no bubblewrap."""
    return (), "none"


class Machine:
    """A home, a project, sockets, processes and other canaries, for one run."""

    def __init__(self, folder: Path, shared: Path, stack: ExitStack, patch: pytest.MonkeyPatch) -> None:
        self.home = folder / "home"
        self.project = self.home / "project"
        for name in SECRETS:
            self._put(self.home / name)
        for repository in (self.project, self.home / "named"):
            (repository / ".git/hooks").mkdir(parents=True)
            (repository / ".git/config").write_text("")
        (self.home / ".local/bin").mkdir()
        temporary = Path(tempfile.mkdtemp(prefix="indus-test-", dir="/tmp"))
        stack.callback(subprocess.run, ["rm", "-rf", str(temporary)], check=False)
        self._put(temporary / "canary")
        memory = Path("/dev/shm") / temporary.name
        self._put(memory)
        stack.callback(memory.unlink)
        (shared / "runtime").mkdir()
        self.datagrams = self._bind(stack, ("127.0.0.1", 0), kind=socket.SOCK_DGRAM)
        listener = self._bind(stack, ("127.0.0.1", 0))
        port6 = 0
        with suppress(OSError):
            port6 = self._bind(stack, ("::1", 0), socket.AF_INET6).getsockname()[1]
        abstract = temporary.name
        paths = [shared / "docker.sock", shared / "agent.sock", temporary / "X0"]
        paths += [shared / "runtime" / name for name in ("bus", "wayland-0", "S.gpg-agent")]
        for path in paths:
            self._bind(stack, str(path), socket.AF_UNIX)
        patch.setattr(places, "_SETTLED_S", -60.0)  # the youngest sockets of a user aren't covered
        self._bind(stack, f"\0{abstract}", socket.AF_UNIX)
        self.master, slave = os.openpty()
        stack.callback(os.close, self.master)
        stack.callback(os.close, slave)
        os.set_blocking(self.master, False)
        other = subprocess.Popen(
            ["sh", "-c", "sleep 300; : canary-on-a-command-line"], env={**os.environ, "CANARY_OUTSIDE": "1"}
        )
        stack.callback(other.wait)
        stack.callback(other.kill)
        file = stack.enter_context((folder / "open").open("w+"))
        file.write("canary in an open file")
        file.flush()
        os.set_inheritable(file.fileno(), True)
        programs = (sys.executable, os.path.realpath(sys.executable), *os.environ["PATH"].split(":"))
        needed = {part for path in programs for part in path.split("/")}
        resolver = os.path.realpath("/etc/resolv.conf").split("/")
        controls = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")
        self.places: dict[str, Any] = {
            "home": str(self.home),
            "workspace": str(self.project),
            "named": str(self.home / "named"),
            "state": str(self.home / ".local/state/indus"),
            "tmp": str(temporary),
            "vartmp": str(shared),
            "shm": str(memory),
            "system": "/etc/hostname" if os.path.exists("/etc/hostname") else "/etc/fstab",
            "needed": [*needed, *SCRIPT.split("/")],
            "resolver": [*resolver, "nscd", "current-system", "booted-system", "opengl-driver", "wrappers"],
            "sys": "/sys/kernel/mm/transparent_hugepage/enabled",
            "cgroup": next((path for path in controls if os.path.isdir(path)), ""),
            "port": listener.getsockname()[1],
            "udp": self.datagrams.getsockname()[1],
            "port6": port6,
            "docker": str(shared / "docker.sock"),
            "agent": str(shared / "agent.sock"),
            "runtime": str(shared / "runtime"),
            "abstract": abstract,
            "gateway": os.getpid(),
            "other": other.pid,
            "key": _add_key(stack),
            "segment": _share_memory(stack),
            "terminal": os.ttyname(slave),
        }
        patch.setenv("HOME", str(self.home))
        patch.delenv("XDG_STATE_HOME", raising=False)
        patch.delenv("XDG_CONFIG_HOME", raising=False)
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(self.project / "secrets/account.json"))
        patch.setenv("DOCKER_HOST", f"unix://{shared / 'docker.sock'}")
        patch.setenv("SSH_AUTH_SOCK", str(shared / "agent.sock"))
        patch.setenv("XDG_RUNTIME_DIR", str(shared / "runtime"))
        patch.setenv("CANARY_API_TOKEN", "1")
        (folder / "private").mkdir()
        patch.setattr("tempfile.tempdir", str(folder / "private"))

    def _put(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("canary", encoding="utf-8")

    def _bind(
        self, stack: ExitStack, address: Any, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM
    ) -> socket.socket:
        one = stack.enter_context(socket.socket(family, kind))
        one.bind(address)
        one.setblocking(False)
        if kind == socket.SOCK_STREAM:
            one.listen(64)
        return one

    def fill(self, attempt: Attempt) -> list[object]:
        """Return the arguments of a probe, with the places of this machine."""

        def fill_in(value: object) -> object:
            if not isinstance(value, str) or "{" not in value:
                return value
            return self.places[value[1:-1]] if value[1:-1] in self.places else value.format(**self.places)

        return [fill_in(value) for value in attempt.arguments]

    def has_effect(self, attempt: Attempt) -> bool:
        """Tell whether an attempt has changed what it wanted to change."""
        kind, *words = (word.format(**self.places) for word in attempt.effect)
        with suppress(OSError):
            if kind == "owned":
                return "owned" in Path(words[0]).read_text(encoding="utf-8")
            if kind == "mode":
                return stat.S_IMODE(os.stat(words[0]).st_mode) == 0o640
            received = self.datagrams.recv(100) if kind == "datagram" else os.read(self.master, 100)
            return received != b""
        return False


def _add_key(stack: ExitStack) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    number = int(libc.syscall(_ADD_KEY, b"user", b"indus-test", b"canary", 6, _SESSION))
    if number > 0:
        stack.callback(libc.syscall, _KEYCTL, _UNLINK, number, _SESSION)
    return number


def _share_memory(stack: ExitStack) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    number = int(libc.shmget(0, 4096, 0o1600))
    address = libc.shmat(number, None, 0)
    ctypes.memmove(address, b"canary", 6)
    stack.callback(libc.shmctl, number, 0, None)  # IPC_RMID
    stack.callback(libc.shmdt, ctypes.c_void_p(address))
    return number


async def attack(
    probes: Mapping[str, tuple[str, list[object]]], profile: JsonValue, machine: Machine, *arguments: str
) -> dict[str, str]:
    """Start the hostile server through an endpoint, and return what its probes have got: `done`, or what stopped it."""
    config = StdioServerConfig(
        "lib",
        sys.executable,
        [SCRIPT, *arguments],
        sandbox=parse_profile(profile),
        cwd=str(machine.project),
        limits=STEADY,
    )
    async with opened(config) as endpoint:
        given: Any = {"probes": {name: [probe, words] for name, (probe, words) in probes.items()}}
        result = await endpoint.invoke("attack", given)
        assert is_json_object(result.content[0])
        found: dict[str, str] = json.loads(str(result.content[0]["text"]))
        for name in found:
            attempt = ATTEMPTS.get(name)
            if attempt is not None and attempt.effect:
                found[name] = "done" if machine.has_effect(attempt) else f"no effect outside, {found[name]}"
    return found


def attack_bare(probes: Mapping[str, tuple[str, list[object]]]) -> dict[str, str]:
    """Start the hostile server as a careless program would."""
    call = {"id": 1, "method": "tools/call", "params": {"arguments": {"probes": probes}}}
    done = subprocess.run(
        [sys.executable, SCRIPT],
        input=json.dumps(call) + "\n",
        capture_output=True,
        text=True,
        close_fds=False,
        check=True,
        timeout=LIMIT_S,
    )
    return json.loads(json.loads(done.stdout)["result"]["content"][0]["text"])


@pytest.fixture(scope="session")
def sockets() -> Iterator[Path]:
    """A directory for sockets that no sandbox's own `/tmp` covers.

    It stays until the end of the run: a sandbox of another test that found a socket there can't cover it otherwise.
    """
    folder = tempfile.mkdtemp(prefix="indus-test-", dir="/var/tmp")
    yield Path(folder)
    subprocess.run(["rm", "-rf", folder], check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, sockets: Path) -> Callable[[str], dict[str, str]]:
    """Run all attempts once in a profile, and return the outcome of each: `done`, or what has stopped it."""
    outcomes: dict[str, dict[str, str]] = {}

    def run_once(name: str) -> dict[str, str]:
        with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
            folder = tmp_path_factory.mktemp(name)
            (folder / "bin").mkdir()
            offer_bubblewrap(folder / "bin", patch)
            (sockets / name).mkdir()
            machine = Machine(folder, sockets / name, stack, patch)
            probes = {name: (attempt.probe, machine.fill(attempt)) for name, attempt in ATTEMPTS.items()}
            if name == "bare":
                return attack_bare(probes)
            if name == "landlock":
                patch.setattr("indusagi.capabilities.sandbox.backend._find_bubblewrap", find_nothing)
            profile = "standard" if name == "landlock" else name
            return asyncio.run(attack(probes, profile, machine, str(machine.home / "named")))

    def get(name: str) -> dict[str, str]:
        if name not in outcomes:
            outcomes[name] = run_once(name)
        return outcomes[name]

    return get


def _check(name: str, run: Callable[[str], dict[str, str]], profiles: tuple[str, ...]) -> None:
    attempt = ATTEMPTS[name]
    control = run("off" if "off" in attempt.open else "bare")[name]
    if control != "done" and attempt.needs:
        pytest.skip(f"without {attempt.needs}, an attempt of a hostile server can't succeed")
    assert control == "done"
    found = {profile: run(profile)[name] for profile in profiles}
    succeeded = [profile for profile, outcome in found.items() if outcome == "done"]
    assert succeeded == [profile for profile in profiles if profile in attempt.open.split()], found


@pytest.mark.parametrize("name", ATTEMPTS)
def test_a_profile_stops_what_it_promises(name: str, run: Callable[[str], dict[str, str]]) -> None:
    skip_without("bubblewrap")
    _check(name, run, ("off", "standard", "strict"))


@pytest.mark.parametrize("name", ATTEMPTS)
def test_landlock_stops_what_it_promises(name: str, run: Callable[[str], dict[str, str]]) -> None:
    skip_without("landlock")
    _check(name, run, ("landlock",))


def test_the_page_of_evidence_lists_every_attempt() -> None:
    assert split_page()[1] == format_table(), "python -m tests.support.hostile writes it"
    assert not any("strict" in attempt.open for attempt in ATTEMPTS.values())
