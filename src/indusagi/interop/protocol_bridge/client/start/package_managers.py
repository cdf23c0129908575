"""Package managers: commands that may download a program before they run it, such as `npx` and `docker run`.

Such a command takes minutes when its cache is cold, and must not be killed while it unpacks: other programs share that
cache. The search looks behind shells, `env` and wrappers too. A wrong result only changes a deadline, so unknown
options are read as what they most likely are.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ALWAYS = frozenset({"npx", "pnpx", "bunx", "uvx", "dnx", "jbang", "nix-shell"})
_SUBCOMMANDS: Mapping[str, frozenset[str]] = {
    "npm": frozenset({"exec", "x", "init", "create", "run", "run-script", "start"}),
    "pnpm": frozenset({"dlx", "exec", "run", "create"}),
    "yarn": frozenset({"dlx", "exec", "run", "create"}),
    "bun": frozenset({"x", "run"}),
    "uv": frozenset({"run", "tool", "x"}),
    "pipx": frozenset({"run"}),
    "deno": frozenset({"run", "x", "task", "serve"}),
    "docker": frozenset({"run", "compose", "container"}),
    "podman": frozenset({"run", "compose", "container"}),
    "nerdctl": frozenset({"run", "compose", "container"}),
    "finch": frozenset({"run", "compose", "container"}),
    "go": frozenset({"run"}),
    "cargo": frozenset({"run", "install", "binstall"}),
    "dotnet": frozenset({"run", "tool", "dnx"}),
    "nix": frozenset({"run", "shell", "develop"}),
    "pixi": frozenset({"run", "exec", "x"}),
    "conda": frozenset({"run"}),
    "mamba": frozenset({"run"}),
    "micromamba": frozenset({"run"}),
    "poetry": frozenset({"run"}),
    "pdm": frozenset({"run"}),
    "hatch": frozenset({"run"}),
    "rye": frozenset({"run"}),
}
_CONTAINERS = frozenset({"docker", "podman", "nerdctl", "finch"})
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ksh", "ash", "fish", "busybox"})
_WRAPPERS = frozenset(
    (
        *("env", "nice", "ionice", "nohup", "time", "timeout", "stdbuf", "setsid", "sudo", "exec"),
        *("command", "xvfb-run", "dbus-run-session", "mise", "asdf", "rtx", "volta", "fnm", "nvm"),
        *("corepack", "direnv", "doppler", "op", "dotenv", "dotenvx", "infisical", "aws-vault"),
        *("flatpak-spawn", "wsl", "systemd-run", "proxychains4", "firejail", "bwrap", "tini"),
    )
)
"""Programs that run the command in their arguments."""
_EXTENSIONS = re.compile(r"\.(cmd|exe|bat|ps1|com)$", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_SEPARATORS = frozenset({";", "&&", "||", "|", "&", "(", ")", "\n"})
_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_NODE_SCRIPTS: Mapping[str, str] = {"npx-cli.js": "npx", "npm-cli.js": "npm", "yarn.js": "yarn"}
_DEEPEST = 6


@record
class PackageManager:
    """A command that may download its program first."""

    name: str
    """Its common name: `npx`, `uvx`, `docker`."""
    outside: bool = False
    """Whether another process downloads for it (a container engine), so that its own tree may look idle."""


def find_package_manager(command: str, args: Sequence[str] = ()) -> PackageManager | None:
    """Return the package manager that a command line runs; `None` if it runs none."""
    return _find([command, *args], _DEEPEST)


def _find(argv: Sequence[str], depth: int) -> PackageManager | None:
    words = list(argv)
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words.pop(0)
    if not words or depth <= 0:
        return None
    name, rest = _program(words[0]), words[1:]
    if name in _ALWAYS:
        return PackageManager(name)
    if name in _SUBCOMMANDS:
        # Options may stand before the subcommand, and have values of their own.
        found = not _SUBCOMMANDS[name].isdisjoint(rest)
        # `yarn server`, `deno server.ts` run too.
        bare = name in {"yarn", "deno"} and bool(rest)
        return PackageManager(name, name in _CONTAINERS) if found or bare else None
    return _find_behind(name, rest, depth)


def _find_behind(name: str, rest: Sequence[str], depth: int) -> PackageManager | None:
    """Look behind a program that runs another."""
    if name in _SHELLS:
        if rest and _program(rest[0]) in _SHELLS:  # busybox sh -c …
            return _find(rest, depth - 1)
        options = (index for index, word in enumerate(rest) if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word))
        after = rest[next(options, len(rest)) + 1 :]
        return _find_in_line(next((word for word in after if not word.startswith("-")), ""), depth)
    if name in {"cmd", "powershell", "pwsh"}:
        words = [word for word in rest if not re.fullmatch(r"/[a-z]|-\w+", word, re.IGNORECASE)]
        return _find_in_line(" ".join(words), depth)
    if _PYTHON.fullmatch(name):
        return _find(rest[rest.index("-m") + 1 :], depth - 1) if "-m" in rest else None
    if name in {"node", "nodejs"}:
        script = next((index for index, word in enumerate(rest) if not word.startswith("-")), None)
        known = None if script is None else _NODE_SCRIPTS.get(_program(rest[script]))
        return None if known is None or script is None else _find([known, *rest[script + 1 :]], 1)
    if name not in _WRAPPERS:
        return None
    for index, word in enumerate(rest):
        if word in {"-S", "--split-string"} and index + 1 < len(rest):
            return _find_in_line(" ".join(rest[index + 1 :]), depth)
        manager = _find(rest[index:], depth - 1) if not word.startswith("-") else None
        if manager is not None:
            return manager
    return None


def _find_in_line(line: str, depth: int) -> PackageManager | None:
    """Look at every simple command of a shell's command line."""
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:  # an open quote
        words = line.split()
    command: list[str] = []
    for word in (*words, ";"):
        if word not in _SEPARATORS:
            command.append(word)
        elif (manager := _find(command, depth - 1)) is not None:
            return manager
        else:
            command = []
    return None


def _program(word: str) -> str:
    """Return the name of a program without directory and extension, in lower case."""
    name = re.split(r"[\\/]", word.rstrip("\\/"))[-1] or os.path.basename(word)
    return _EXTENSIONS.sub("", name).lower()
