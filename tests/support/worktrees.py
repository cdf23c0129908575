"""Work trees for tests: a directory with every kind of file, and a repository around it."""

from __future__ import annotations

import os
import stat
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def run_git(folder: Path, *arguments: str) -> str:
    """Run git as a user with a name."""
    name = ("-c", "user.name=Test", "-c", "user.email=test@example.invalid")
    done = subprocess.run(
        ["git", *name, *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout


def make_tree(work: Path) -> None:
    """Make files of every kind: binary, CRLF, an own mode, a link, an empty directory, a strange name."""
    (work / "sub/deep").mkdir(parents=True)
    (work / "sub/binary.bin").write_bytes(bytes(range(256)) * 5)
    (work / "sub/crlf.txt").write_bytes(b"one\r\ntwo\nthree\r\n")
    (work / "sub/deep/script.sh").write_bytes(b"#!/bin/sh\n")
    (work / "sub/deep/script.sh").chmod(0o750)
    (work / "sub/private").write_bytes(b"secret")
    (work / "sub/private").chmod(0o600)
    (work / "sub/link").symlink_to("crlf.txt")
    (work / "sub/dangling").symlink_to("../nowhere")
    (work / "sub/empty").mkdir()
    (work / "sub/with\nnewline é").write_bytes(b"")
    (work / "keep.txt").write_bytes(b"keep\n")


def make_repository(work: Path) -> None:
    """Make a repository of the tree, with one file that is not tracked and one that is ignored."""
    run_git(work, "init", "-q")
    (work / ".gitignore").write_text("*.log\n", encoding="utf-8")
    run_git(work, "add", "-A")
    run_git(work, "commit", "-q", "-m", "first")
    (work / "sub/untracked").write_bytes(b"\x00new\r\n")
    (work / "build.log").write_bytes(b"ignored")


def describe_tree(root: Path, *, skip: str = ".git") -> dict[str, tuple[int, bytes]]:
    """Describe every path below a directory: its kind and mode, and its bytes or the text of its link."""
    facts: dict[str, tuple[int, bytes]] = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != skip]
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            content = b""
            if stat.S_ISLNK(status.st_mode):
                content = os.fsencode(os.readlink(path))
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    content = file.read()
            facts[os.path.relpath(path, root)] = (status.st_mode, content)
    return facts
