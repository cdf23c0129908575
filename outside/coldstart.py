"""`python -m outside.coldstart`: real `npx` and `uvx` servers, started for the first time ever.

In an empty home with empty caches five servers are listed by one `indus mcp list`, twice. Then a
list is interrupted (SIGINT) in mid-download, at several moments, and the same `npx` commands are
run in a plain shell. Nothing that is left in the cache of npm may stand in their way. Needs `npx`
on the PATH and the registries of npm and PyPI. Ends with 0 if all went well.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from outside.say import complain, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PACKAGE = "@modelcontextprotocol/server-"
_NPX = ("filesystem", "memory", "everything", "sequential-thinking")
_UVX = ("mcp-server-time",)
_LIST_S = 600
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
        wrong = _list_twice(Path(folder) / "list", tools)
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
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
    }


def _add(folder: Path, env: Mapping[str, str], name: str, *command: str) -> None:
    words = [*_INDUS, "mcp", "add", "--no-check", name, "--", *command]
    subprocess.run(words, check=True, env=env, cwd=folder, stdout=subprocess.DEVNULL)


def _add_npx(folder: Path, env: Mapping[str, str], names: Sequence[str]) -> None:
    for name in names:
        _add(folder, env, name, *_npx_command(name, folder))


def _npx_command(name: str, folder: Path) -> Sequence[str]:
    places = [str(folder)] if name == "filesystem" else []
    return ["npx", "-y", f"{_PACKAGE}{name}", *places]


def _list_twice(folder: Path, tools: Path) -> list[str]:
    env = _home(folder, tools)
    _add_npx(folder, env, _NPX)
    for name in _UVX:
        _add(folder, env, name, "uvx", name)
    wrong: list[str] = []
    for run in ("cold", "warm"):
        begun = time.monotonic()
        done = subprocess.run(
            [*_INDUS, "mcp", "list", "--json"], capture_output=True, check=True, env=env, cwd=folder, timeout=_LIST_S
        )
        servers = json.loads(done.stdout)["servers"]
        for one in servers:
            say(f"{run}: {one['name']}: {one['phase']}, {one['tools']} tools {one['message']}")
        say(f"{run}: listed in {time.monotonic() - begun:.1f} s")
        wrong += [f"{run}: {one['name']}" for one in servers if one["phase"] != "ready"]
        wrong += [f"{run}: left behind: {path}" for path in _leftovers(folder / "npm")]
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
