"""Whether the files of this installation are those of this distribution."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from indusagi import DISTRIBUTION
from indusagi.core.notes import Note

_OTHERS = ("indusagi", "induscode")
_PACKAGES = ("indusagi/", "induscode/")
_SHOWN = 3


def check_installation() -> Sequence[Note]:
    """Compare installed files with the record of the distribution, and look for rivals of it.

    Distributions of PyPI that are called `indusagi` and `induscode` install packages and commands
    of the same names. Slower than the check at each start: for `indus mcp doctor`.
    """
    remedy = f"pip uninstall {' '.join(_OTHERS)} {DISTRIBUTION}, then install {DISTRIBUTION} again"
    notes = [
        Note(f"distribution {name} {found.version}", "has files of the same names as ours", remedy)
        for name in _OTHERS
        if (found := _find(name)) is not None
    ]
    changed = _changed_files()
    if changed:
        names = ", ".join(changed[:_SHOWN]) + (" …" if len(changed) > _SHOWN else "")
        said = f"{len(changed)} of its files are not as they were installed: {names}"
        notes.append(Note(f"distribution {DISTRIBUTION}", said, remedy))
    return notes


def _find(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _changed_files() -> Sequence[str]:
    """Name the files of ours whose content is not what the record says; empty for a clone."""
    found = _find(DISTRIBUTION)
    changed: list[str] = []
    for file in (found.files or ()) if found is not None else ():
        if not str(file).startswith(_PACKAGES) or file.hash is None or file.hash.mode != "sha256":
            continue
        try:
            data = Path(str(file.locate())).read_bytes()
        except OSError:
            changed.append(str(file))
            continue
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if digest != file.hash.value:
            changed.append(str(file))
    return changed
