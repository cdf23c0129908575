"""Consent to addons of a project, in one private file outside every project.

An addon is code that runs with the rights of this user, so a file of a project is loaded only after a person has agreed
to exactly its content. The agreement names the file and the digest of its bytes; a changed file needs a new one.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import PrivateJsonFile, state_dir
from indusagi.core.json import is_json_object
from indusagi.core.time import iso_utc, now_ms

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.core.consent import ConsentState

_FILE_NAME = "addon-trust.json"
_VERSION = 1
_LARGEST_BYTES = 4 * 1024 * 1024


def digest_content(content: bytes) -> str:
    """Digest the content of a file (SHA-256, as `sha256sum` prints it)."""
    return hashlib.sha256(content).hexdigest()


class AddonConsentStore:
    """The consents of this user to files of projects. Its methods block."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path

    def _file(self) -> PrivateJsonFile[dict[str, JsonObject]]:
        path = self._path or os.path.join(state_dir(), _FILE_NAME)
        return PrivateJsonFile(path, _LARGEST_BYTES, _parse_consents, _dump_consents)

    def find_consent(self, file: str, digest: str) -> ConsentState:
        """Look up the consent to a file with this content; a damaged store has none.

        Raises:
            OSError: There is no home directory.
        """
        known = self._file().read()[0].get(os.path.realpath(file))
        if known is None:
            return "unknown"
        return "trusted" if known.get("digest") == digest else "changed"

    def approve(self, file: str, digest: str) -> None:
        """Store the consent to a file with this content.

        Raises:
            OSError: The store cannot be written.
        """
        with self._file().change() as consents:
            consents[os.path.realpath(file)] = {"digest": digest, "at": iso_utc(now_ms())}

    def revoke(self, file: str) -> bool:
        """Remove the consent to a file, and tell whether there was one.

        Raises:
            OSError: The store cannot be written.
        """
        with self._file().change() as consents:
            return consents.pop(os.path.realpath(file), None) is not None


def _parse_consents(document: JsonValue) -> tuple[dict[str, JsonObject], bool]:
    rows = document.get("approved") if is_json_object(document) else None
    if not is_json_object(rows):
        return {}, True
    return {file: row for file, row in rows.items() if is_json_object(row)}, False


def _dump_consents(consents: dict[str, JsonObject]) -> JsonValue:
    return {"version": _VERSION, "approved": dict(sorted(consents.items()))}
