"""Which rule stands for a command when somebody says "always": its name with what belongs to it.

`git commit -m x` becomes `bash(git commit *)`, not `bash(git *)`. What runs other commands, or
text as code, is never allowed for always; what destroys is allowed as it was written only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from induscode.session.permissions.shell.arguments import find_problem
from induscode.session.permissions.shell.launchers import base_name, names, runs_anything

if TYPE_CHECKING:
    from induscode.session.permissions.shell.script import Command

_NEVER = names(
    "sh bash dash ash zsh ksh mksh fish csh tcsh eval exec sudo doas su xargs env ssh source ."
    " command builtin nohup nice time timeout parallel watch find awk sed perl npx uvx bunx pnpx"
)
"""Whatever they start would be allowed with them."""
_AS_WRITTEN = names(
    "rm rmdir unlink shred dd mkfs mount umount chmod chown chgrp kill pkill killall mv cp ln"
    " install truncate curl wget nc scp rsync ftp telnet reboot shutdown systemctl service iptables"
    " crontab passwd useradd usermod python python3 node ruby php lua deno bun tee"
)
"""One of them is not like the other: the whole command is the rule."""
_DEPTHS = {
    **dict.fromkeys(
        names(
            "git hg svn npm pnpm yarn cargo go docker podman kubectl helm pip pip3 uv poetry pdm"
            " brew apt apt-get dnf gh glab terraform ansible make cmake gradle mvn rustup conda"
            " just task bazel dotnet composer bundle rake mix flutter swift stack cabal nix aws az"
            " gcloud hatch tox nox ruff rails"
        ),
        2,
    ),
    "npm run": 3,
    "npm exec": 3,
    "pnpm run": 3,
    "yarn run": 3,
    "bun run": 3,
    "uv run": 3,
    "uv pip": 3,
    "poetry run": 3,
    "docker compose": 3,
    "docker container": 3,
    "docker image": 3,
    "git remote": 3,
    "git stash": 3,
    "git worktree": 3,
    "git submodule": 3,
    "git config": 3,
    "gh pr": 3,
    "gh issue": 3,
    "gh repo": 3,
    "gh run": 3,
    "gh api": 3,
    "aws s3": 3,
    "bundle exec": 3,
    "cargo run": 2,
    "dotnet tool": 3,
    "nix flake": 3,
}
"""How many words of a command say what it does."""
_SAFE_WORD = re.compile(r"[A-Za-z0-9_./+@%:=,-]+")


def saved_pattern(command: Command) -> str | None:
    """Give the specifier that stands for a command; None if it is never allowed for always."""
    texts = [word.text for word in command.words]
    name = texts[0]
    problem = find_problem(command.words, fed=command.fed)
    if name is None or base_name(name) in _NEVER or runs_anything(command.words) is not None:
        return None
    if problem is not None and problem.acts:
        return None
    depth = _depth(texts)
    as_written = base_name(name) in _AS_WRITTEN or "/" in name or depth > len(texts)
    if as_written or any(_is_option(text) for text in texts[:depth]):
        return _pattern(texts, more=False)
    if find_problem(command.words, frozenset(range(depth)), fed=command.fed) is not None:
        return _pattern(texts, more=False)
    return _pattern(texts[:depth], more=True)


def _depth(texts: list[str | None]) -> int:
    two = " ".join(text or "" for text in texts[:2])
    return _DEPTHS.get(two) or _DEPTHS.get(texts[0] or "", 1)


def _is_option(text: str | None) -> bool:
    return text is None or text.startswith("-")


def _pattern(texts: list[str | None], *, more: bool) -> str | None:
    if not all(text is not None and _SAFE_WORD.fullmatch(text) for text in texts):
        return None
    return " ".join([*(text for text in texts if text is not None), *(["*"] if more else [])])
