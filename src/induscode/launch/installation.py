"""Check of the installation: are the installed files those of this distribution?"""

from __future__ import annotations

import base64
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
    changed: list[str] = []
    for file in (own.files or ()) if own is not None else ():  # a clone has no RECORD of our files
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
    if changed:
        names = ", ".join(changed[:_SHOWN]) + (" …" if len(changed) > _SHOWN else "")
        message = f"{len(changed)} of its files are not as they were installed: {names}"
        notes.append(Note(f"distribution {DISTRIBUTION}", message, remedy))
    return notes


def _find_distribution(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
