"""Checks that the installed files belong to this distribution."""

from __future__ import annotations

import base64
import csv
import hashlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from indusagi import DISTRIBUTION
from indusagi.core.faults import Note

_OTHERS = ("indusagi", "induscode")
_PACKAGES = ("indusagi/", "induscode/")
_MAX_NAMES = 3


def check_installation() -> Sequence[Note]:
    """Compare installed files with the distribution's RECORD, and look for conflicting distributions.

    `indusagi` and `induscode` on PyPI install packages and commands of the same names. Unlike the check at startup,
    this one (for `indus mcp doctor`) reads every file.
    RECORD: https://packaging.python.org/en/latest/specifications/recording-installed-packages/
    """
    remedy = f"pip uninstall {' '.join(_OTHERS)} {DISTRIBUTION}, then install {DISTRIBUTION} again"
    notes = [
        Note(f"distribution {name} {other.version}", "has files of the same names as ours", remedy)
        for name in _OTHERS
        if (other := _find_distribution(name)) is not None
    ]
    own = _find_distribution(DISTRIBUTION)
    changed = () if own is None else _list_changed_files(own)
    if changed:
        names = ", ".join(changed[:_MAX_NAMES]) + (" …" if len(changed) > _MAX_NAMES else "")
        message = f"{len(changed)} of its files are not as they were installed: {names}"
        notes.append(Note(f"distribution {DISTRIBUTION}", message, remedy))
    return notes


def _list_changed_files(own: metadata.Distribution) -> Sequence[str]:
    """List our missing and modified files. A clone has none, since its RECORD doesn't list our packages.

    We read RECORD ourselves because `Distribution.files` omits missing files since Python 3.12.
    """
    changed: list[str] = []
    for name, digest, _size in csv.reader((own.read_text("RECORD") or "").splitlines()):
        mode, _, wanted = digest.partition("=")
        if not name.startswith(_PACKAGES) or mode != "sha256":
            continue
        try:
            data = Path(str(own.locate_file(name))).read_bytes()
        except OSError:
            changed.append(name)
            continue
        if base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode() != wanted:
            changed.append(name)
    return changed


def _find_distribution(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
