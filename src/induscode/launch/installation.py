"""Check of the installation: are the installed files those of this distribution?"""

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
_SHOWN = 3


def check_installation() -> Sequence[Note]:
    """Compare installed files with the distribution's RECORD, and look for distributions with the same packages.

    The distributions `indusagi` and `induscode` of PyPI install packages and commands of the same names. The check
    reads every file, unlike the one at each start; `indus mcp doctor` runs it.
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
        names = ", ".join(changed[:_SHOWN]) + (" …" if len(changed) > _SHOWN else "")
        message = f"{len(changed)} of its files are not as they were installed: {names}"
        notes.append(Note(f"distribution {DISTRIBUTION}", message, remedy))
    return notes


def _list_changed_files(own: metadata.Distribution) -> Sequence[str]:
    """List the files of our packages that are missing or differ; none for a clone, whose RECORD has no such files.

    `Distribution.files` leaves missing files out from Python 3.12 on, so RECORD is read here.
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
