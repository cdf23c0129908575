"""The public sets: which files of which commits, their SHA-256, and how they are fetched.

Git fetches one commit of each repository, without its history. A directory with the same files (`SETS=…`) takes their
place where there is no network. Every file must have its digest: what is measured is what was published.
"""

from __future__ import annotations

import hashlib
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from outside.install import HOME
from outside.say import say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LIST: Final = Path(__file__).parent / "sources.toml"
_FETCH_S: Final = 900


@dataclass(frozen=True, slots=True)
class Source:
    """Files of one commit of a public repository."""

    repository: str
    """Owner and name on GitHub."""
    commit: str
    licence: str
    files: Mapping[str, str]
    """Path and SHA-256."""

    @property
    def name(self) -> str:
        """The directory of its files."""
        return self.repository.rpartition("/")[2]


class SetMissing(Exception):
    """A file of a set is absent or another one."""


def read_sources(path: Path = _LIST) -> Sequence[Source]:
    """Read a list of sources."""
    return [Source(**row) for row in tomllib.loads(path.read_text("utf-8"))["source"]]


def find_files(folder: Path | None, path: Path = _LIST) -> Path:
    """Find the sets of a list in a directory, or fetch them into `.outside/search-sets`, and check every file.

    Raises:
        SetMissing: A file is absent or differs.
    """
    root = folder or HOME / "search-sets"
    for source in read_sources(path):
        target = root / source.name
        if folder is None and not all((target / name).exists() for name in source.files):
            _fetch(source, target)
        for name, digest in source.files.items():
            try:
                data = (target / name).read_bytes()
            except OSError as exc:
                raise SetMissing(f"{source.repository}: {exc}") from exc
            found = hashlib.sha256(data).hexdigest()
            if found != digest:
                raise SetMissing(f"{target / name} has the SHA-256 {found}, and {digest} was measured")
    return root


def _fetch(source: Source, target: Path) -> None:
    say(f"Fetching {source.repository} (once) ...")
    target.mkdir(parents=True, exist_ok=True)
    address = f"https://github.com/{source.repository}.git"
    try:
        for command in (
            ["init", "--quiet"],
            ["fetch", "--quiet", "--depth", "1", "--filter=blob:none", address, source.commit],
            ["-c", "core.autocrlf=false", "checkout", "--quiet", "FETCH_HEAD", "--", *source.files],
        ):
            subprocess.run(["git", *command], cwd=target, check=True, capture_output=True, timeout=_FETCH_S)
    except (OSError, subprocess.SubprocessError) as exc:
        said = exc.stderr.decode("utf-8", "replace") if isinstance(exc, subprocess.CalledProcessError) else str(exc)
        raise SetMissing(f"git cannot fetch {source.repository}: {said.strip()}") from exc
