"""Random trees with ignore rules in them, and what git makes of each."""

from __future__ import annotations

import os
import random
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = ("a", "b", "ab", "ba", "abc", "A", "B1", ".x", "a.b", "b.a", "build", "keep.log", "x y")
_ATOMS = (
    *("a", "b", "ab", ".x", "a.b", "build", "A", "1", "."),
    *("*", "?", "**", "/", "*/", "**/", "/**", "/**/", "*.b", "*.log", "keep.*", "{a,b}"),
    *("[ab]", "[!a]", "[^b]", "[a-c]", "[[:upper:]]", "[[:alpha:]]", "[]a]", "[a", "[b-a]"),
    *("\\a", "\\*", "\\!", "\\#", "!", "#", "\\", " ", "\\ "),
)
_ENVIRONMENT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}


def grow(seed: int, root: Path) -> None:
    """Plant a small repository with rules in several of its directories."""
    chance = random.Random(seed)
    for folder in ("objects", "refs", "info"):
        (root / ".git" / folder).mkdir(parents=True)
    (root / ".git/HEAD").write_text("ref: refs/heads/main\n", encoding="ascii")
    folders = [root]
    for _ in range(chance.randint(4, 16)):
        path = chance.choice(folders) / chance.choice(_NAMES)
        if path.exists():
            continue
        if chance.random() < 0.4 and len(path.parts) - len(root.parts) < 4:
            path.mkdir()
            folders.append(path)
        else:
            path.touch()
    for folder in folders:
        if folder is root or chance.random() < 0.3:
            rules = "\n".join(_rule(chance) for _ in range(chance.randint(1, 6)))
            (folder / ".gitignore").write_text(f"{rules}\n", encoding="utf-8")


def _rule(chance: random.Random) -> str:
    text = "".join(chance.choices(_ATOMS, k=chance.choice([1, 1, 2, 2, 3, 4])))
    return chance.choice(["", "", "", "!", "/"]) + text + chance.choice(["", "", "/", " "])


def files_in(root: Path) -> set[str]:
    """List the files of a tree, those of git itself apart."""
    found: set[str] = set()
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != ".git"]
        found.update(os.path.relpath(os.path.join(folder, name), root) for name in files)
    return found


def list_by_git(root: Path) -> set[str]:
    """List the files that git does not ignore."""
    said = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=root,
        env={**os.environ, **_ENVIRONMENT},
        capture_output=True,
        check=True,
    ).stdout
    return {os.fsdecode(name) for name in said.split(b"\0") if name}
