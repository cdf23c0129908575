"""Connector store: one private JSON file, and each connector's approved document next to it.

Requests are built from the approved document alone. A row holds the digests of its operations, to detect and show
changes of the source.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from indusagi.core.app_dirs import PrivateJsonFile, make_private_dir, read_small_file, replace_file, state_dir
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from induscode.connectors.openapi import LARGEST_BYTES, ConnectorFault

if TYPE_CHECKING:
    from induscode.connectors.auth import ConnectorAuth, OAuthReference


_VERSION: Final = 1
_MAX_FILE_BYTES: Final = 64 * 1024 * 1024
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_FILE: Final = "connectors.json"


@record(kw_only=True)
class ConnectorRow:
    """One registered connector."""

    name: str
    source: str
    """Absolute path or URL of its document."""
    base_url: str
    """Where requests go."""
    own_base_url: bool
    """Whether the user set the base URL, instead of the document."""
    auth: ConnectorAuth | None
    source_digest: str
    """Digest of the approved source's bytes."""
    digests: Mapping[str, str]
    """Digests of the approved operations, by slug; the empty slug is the base URL."""
    checked_ms: int
    """Time of the last comparison with the source."""
    changed: bool = False
    """Whether the source differed then, which disables the connector until the change is approved."""
    sign_in_at: str = ""
    """The approved sign-in addresses, or empty."""

    @property
    def oauth(self) -> OAuthReference | None:
        """Its OAuth sign-in, if it has one."""
        from induscode.connectors.auth import OAuthReference  # noqa: PLC0415 — for runs with a connector

        return self.auth if isinstance(self.auth, OAuthReference) else None

    @property
    def hidden_parameters(self) -> frozenset[tuple[str, str]]:
        """Parameters the connector sends itself, as place and lower-case name."""
        return frozenset() if self.auth is None else self.auth.sends

    def to_json(self) -> JsonObject:
        """Build the stored form."""
        return {
            "source": self.source,
            "baseUrl": self.base_url,
            "ownBaseUrl": self.own_base_url,
            "auth": self.auth and str(self.auth) if self.oauth is None else self.oauth.to_json(),
            "sourceDigest": self.source_digest,
            "digests": dict(self.digests),
            "checkedMs": self.checked_ms,
            "changed": self.changed,
            "signInAt": self.sign_in_at,
        }


def check_name(name: str) -> None:
    """Check a connector's name, or raise `ConnectorFault`."""
    if not _NAME.fullmatch(name):
        message = f"{name[:60]!r} cannot be the name of a connector: use small letters, digits and hyphens, 32 at most"
        raise ConnectorFault(message)


class ConnectorStore:
    """This user's connectors. Its methods block, so call them in a thread."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder

    @property
    def folder(self) -> str:
        """The directory of the file; raises `OSError` if there's no home directory."""
        return self._folder or state_dir()

    def has_rows(self) -> bool:
        """Return whether there may be connectors, without parsing the file."""
        try:
            return os.path.exists(os.path.join(self.folder, _FILE))
        except OSError:
            return False

    def read_signature(self) -> object:
        """Return the file's inode, size and times, or None if it's missing."""
        try:
            status = os.stat(os.path.join(self.folder, _FILE))
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def read(self) -> tuple[Mapping[str, ConnectorRow], bool]:
        """Return the connectors by name, and whether the file is damaged."""
        return self._file().read()

    def add(self, row: ConnectorRow, document: JsonObject, *, replace: bool = False) -> None:
        """Store a connector with its approved document.

        Raises `ConnectorFault` if the name is taken, and `replace` isn't set, and `OSError` if a file can't be written.
        """
        with self._file().change() as rows:
            if row.name in rows and not replace:
                message = f"there is a connector {row.name!r} already: indus connectors remove {row.name}"
                raise ConnectorFault(message)
            make_private_dir(os.path.join(self.folder, "connectors"))
            replace_file(self._document_path(row.name), compact_json(document).encode("utf-8"))
            rows[row.name] = row

    def update(self, row: ConnectorRow) -> None:
        """Store the result of a comparison. A connector removed in the meantime stays removed.

        Raises `OSError` if the file can't be written.
        """
        with self._file().change() as rows:
            if row.name in rows and rows[row.name].source_digest == row.source_digest:
                rows[row.name] = row

    def remove(self, name: str) -> bool:
        """Remove a connector, and return whether it existed; raises `OSError` if a file can't be removed or written."""
        if not self.has_rows():
            return False
        with self._file().change() as rows:
            is_known = rows.pop(name, None) is not None
            if is_known and os.path.exists(self._document_path(name)):
                os.unlink(self._document_path(name))
            is_last = not rows
        if is_last:
            os.unlink(os.path.join(self.folder, _FILE))
        return is_known

    def read_document(self, name: str) -> JsonObject:
        """Read a connector's approved document; raises `ConnectorFault` if it's missing or damaged."""
        try:
            document: JsonValue = json.loads(
                read_small_file(self._document_path(name), 2 * LARGEST_BYTES, follow=False)
            )
        except (OSError, ValueError, RecursionError) as exc:
            message = (
                f"the approved document of connector {name!r} cannot be read ({exc}): remove and add the connector"
            )
            raise ConnectorFault(message) from exc
        return cast("JsonObject", document)

    def _document_path(self, name: str) -> str:
        return os.path.join(self.folder, "connectors", f"{name}.json")

    def _file(self) -> PrivateJsonFile[dict[str, ConnectorRow]]:
        return PrivateJsonFile(
            os.path.join(self.folder, _FILE),
            _MAX_FILE_BYTES,
            _parse_rows,
            lambda rows: {"version": _VERSION, "connectors": {name: row.to_json() for name, row in rows.items()}},
        )


def _parse_rows(document: JsonValue) -> tuple[dict[str, ConnectorRow], bool]:
    if document is None:
        return {}, False
    rows = document.get("connectors") if is_json_object(document) else None
    if not is_json_object(rows):
        return {}, True
    parsed = {name: _parse_row(name, row) for name, row in rows.items()}
    return {name: row for name, row in parsed.items() if row is not None}, None in parsed.values()


def _parse_row(name: str, row: JsonValue) -> ConnectorRow | None:
    if not is_json_object(row) or not _NAME.fullmatch(name):
        return None
    source, base_url, auth, digests = row.get("source"), row.get("baseUrl"), row.get("auth"), row.get("digests")
    checked, source_digest, sign_in_at = row.get("checkedMs"), row.get("sourceDigest"), row.get("signInAt")
    if not isinstance(source, str) or not isinstance(base_url, str) or not is_json_object(digests):
        return None
    from induscode.connectors.auth import parse_stored_auth  # noqa: PLC0415 — for runs with a connector

    try:
        reference = parse_stored_auth(auth)
    except ConnectorFault:
        return None  # it would be another connector without its credentials
    return ConnectorRow(
        name=name,
        source=source,
        base_url=base_url,
        own_base_url=row.get("ownBaseUrl") is True,
        auth=reference,
        source_digest=str(source_digest),
        digests={slug: str(digest) for slug, digest in digests.items()},
        checked_ms=checked if isinstance(checked, int) else 0,
        changed=row.get("changed") is True,
        sign_in_at=sign_in_at if isinstance(sign_in_at, str) else "",
    )
