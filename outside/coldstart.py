"""`python -m outside.coldstart`: real `npx` and `uvx` servers, started for the first time ever.

In an empty home with empty caches five servers are started by one `indus mcp doctor`, twice: without a sandbox
and in `standard`, in turns. A sandbox leaves the user's caches alone, and may take 1.2 times as long. Then a
list is interrupted (SIGINT) in mid-download, at several moments, and the same `npx` commands are
run in a plain shell. Nothing that is left in the cache of npm may stand in their way. Needs `npx`
on the PATH and the registries of npm and PyPI. Ends with 0 if all went well.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from outside.say import aligned, complain, markdown, say, write_between

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROOT = Path(__file__).parent.parent
_PACKAGE = "@modelcontextprotocol/server-"
_NPX = ("filesystem", "memory", "everything", "sequential-thinking")
_UVX = ("mcp-server-time",)
_LIST_S = 600
_PROFILES = ("off", "standard")
_TURNS = 3
_MOST = 1.2
"""How many times as long a first start may take in a sandbox."""
_BUBBLEWRAP = Path(sys.prefix) / "bubblewrap/bin"
_MOMENTS_S = (1.5, 3.0, 5.0, 8.0)
"""When lists are interrupted: while packages are resolved, downloaded, unpacked."""
_INDUS = (sys.executable, "-m", "induscode")
_HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "coldstart", "version": "1"},
    },
}


def main() -> int:
    """Run all of it and give the exit code."""
    if shutil.which("npx") is None:
        complain("outside.coldstart: there is no npx")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        tools = _install_uv(Path(folder))
        wrong = _compare_profiles(Path(folder), tools)
        for moment in _MOMENTS_S:
            wrong += _interrupt(Path(folder) / f"interrupt-{moment}", tools, moment)
    for line in wrong:
        complain(f"wrong: {line}")
    say("all ok" if not wrong else f"{len(wrong)} wrong")
    return 1 if wrong else 0


def _install_uv(folder: Path) -> Path:
    environment = folder / "uv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    subprocess.run([environment / "bin" / "pip", "-q", "install", "uv"], check=True)
    return environment / "bin"


def _home(folder: Path, tools: Path) -> Mapping[str, str]:
    folder.mkdir()
    return {
        **os.environ,
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / ".config"),
        "npm_config_cache": str(folder / "npm"),
        "UV_CACHE_DIR": str(folder / "uv-cache"),
        "PATH": os.pathsep.join([str(tools), os.environ["PATH"], str(_BUBBLEWRAP)]),
    }


def _add(folder: Path, env: Mapping[str, str], name: str, *command: str, profile: str = "off") -> None:
    words = [*_INDUS, "mcp", "add", "--no-check", "--sandbox", profile, name, "--", *command]
    subprocess.run(words, check=True, env=env, cwd=folder, stdout=subprocess.DEVNULL)


def _add_npx(folder: Path, env: Mapping[str, str], names: Sequence[str], profile: str = "off") -> None:
    for name in names:
        _add(folder, env, name, *_npx_command(name, folder), profile=profile)


def _npx_command(name: str, folder: Path) -> Sequence[str]:
    places = [str(folder)] if name == "filesystem" else []
    return ["npx", "-y", f"{_PACKAGE}{name}", *places]


def _compare_profiles(folder: Path, tools: Path) -> list[str]:
    wrong: list[str] = []
    seconds: dict[tuple[str, str], list[float]] = {}
    for turn in range(_TURNS):
        for profile in _PROFILES if turn % 2 else reversed(_PROFILES):
            wrong += _list_twice(folder / f"{profile}-{turn}", tools, profile, seconds)
    rows: list[tuple[str, ...]] = []
    for run in ("cold", "warm"):
        plain, held = (statistics.median(seconds[profile, run]) for profile in _PROFILES)
        rows.append((run, f"{plain:.1f} s", f"{held:.1f} s", f"{held / plain:.2f} x"))
        say(aligned(rows[-1], (4, 8, 8, 6)))
        if run == "cold" and held > _MOST * plain:
            wrong.append(f"a first start takes {held / plain:.2f} times as long in standard")
    head = ("caches", "without a sandbox", "`standard`", "ratio")
    write_between(_ROOT / "docs/evidence/sandboxes.md", "cold starts", markdown(head, rows))
    return wrong


def _list_twice(folder: Path, tools: Path, profile: str, seconds: dict[tuple[str, str], list[float]]) -> list[str]:
    env = _home(folder, tools)
    _add_npx(folder, env, _NPX, profile)
    for name in _UVX:
        _add(folder, env, name, "uvx", name, profile=profile)
    wrong: list[str] = []
    for run in ("cold", "warm"):
        begun = time.monotonic()
        done = subprocess.run(
            [*_INDUS, "mcp", "doctor", "--json"], capture_output=True, check=False, env=env, cwd=folder, timeout=_LIST_S
        )
        took_s = time.monotonic() - begun
        seconds.setdefault((profile, run), []).append(took_s)
        servers = json.loads(done.stdout)["servers"]
        for one in servers:
            say(f"{profile}, {run}: {one['name']}: {one['tools']} tools, {one['latencyMs']} ms {one['fault'] or ''}")
        say(f"{profile}, {run}: started in {took_s:.1f} s")
        wrong += [f"{profile}, {run}: {one['name']}" for one in servers if not one["tools"]]
        wrong += [f"{profile}, {run}: left behind: {path}" for path in _leftovers(folder / "npm")]
    if profile != "off":
        caches = (folder / name for name in ("npm", "uv-cache", ".npm", ".cache"))
        wrong += [f"{profile} wrote to {path.name} of the user" for path in caches if path.exists()]
    return wrong


def _interrupt(folder: Path, tools: Path, moment_s: float) -> list[str]:
    env = _home(folder, tools)
    _add_npx(folder, env, _NPX[:3])
    child = subprocess.Popen([*_INDUS, "mcp", "list"], env=env, cwd=folder)
    time.sleep(moment_s)
    begun = time.monotonic()
    child.send_signal(signal.SIGINT)
    code = child.wait(120)
    say(f"interrupted after {moment_s} s: ended {time.monotonic() - begun:.1f} s later ({code})")
    wrong = [f"{moment_s} s: left behind: {path}" for path in _leftovers(folder / "npm")]
    for name in _NPX[:3]:
        shell = subprocess.run(
            _npx_command(name, folder),
            input=json.dumps(_HELLO).encode() + b"\n",
            capture_output=True,
            check=False,
            env=env,
            cwd=folder,
            timeout=_LIST_S,
        )
        if b'"serverInfo"' not in shell.stdout:
            said = shell.stderr.decode("utf-8", "replace")[-300:]
            wrong.append(f"{moment_s} s: npx of {name} in a shell: {said}")
    return wrong


def _leftovers(cache: Path) -> list[str]:
    """Find locks, and folders of npx whose package is not whole."""
    locks = [str(path) for path in cache.rglob("*.lock")]
    folders = [path for path in cache.glob("_npx/*") if path.is_dir()]
    # npm unpacks beside the final place, in a hidden folder whose name has a random end.
    beside = (path for one in folders for path in one.glob("node_modules/.*-*"))
    halves = [str(path) for path in beside if path.is_dir()]
    bare = [str(one) for one in folders if (one / "node_modules").is_dir() and not _whole(one)]
    return [*locks, *halves, *bare]


def _whole(folder: Path) -> bool:
    return (folder / "package.json").is_file() and (folder / "package-lock.json").is_file()


if __name__ == "__main__":
    sys.exit(main())
