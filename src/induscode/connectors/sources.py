"""Connector sources: an OpenAPI document read from a file or URL, and compared with the approved one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from indusagi.core.app_dirs import read_small_file
from indusagi.core.records import record
from indusagi.core.time import now_ms
from indusagi.interop.auth.metadata import is_loopback
from indusagi.net.address import FetchError, parse_url
from indusagi.net.client import CrossSiteRedirect, WebClient
from induscode.connectors.auth import ConnectorAuth, OAuthReference, choose_scheme
from induscode.connectors.openapi import (
    LARGEST_BYTES,
    ConnectorFault,
    find_path_problem,
    find_server_url,
    parse_document,
)
from induscode.connectors.operations import OperationSpec, digest_definitions, list_definition, list_operations
from induscode.connectors.store import ConnectorRow
from induscode.core.consent import Consent, build_consent

if TYPE_CHECKING:
    from indusagi.capabilities.ports import WebSettings
    from indusagi.core.faults import Note
    from indusagi.core.json import JsonObject, JsonValue

_OK: Final = 200
_MAX_NAMED: Final = 3
"""Slugs named in a message about a change."""


@record(kw_only=True)
class SourceReading:
    """The current state of a source."""

    row: ConnectorRow
    document: JsonObject
    operations: Sequence[OperationSpec]
    notes: Sequence[Note]

    def describe(self, change: DocumentChange, diffs: Mapping[str, str]) -> Consent:
        """Build the question about using the document from now on. `diffs` are keyed by slug."""
        row = self.row
        lines = [f"base URL: {change.base_url}"] if change.base_url is not None else []
        lines += [f"sign-in: {change.sign_in_at}"] if change.sign_in_at is not None else []
        for name, slugs in (("added", change.added), ("removed", change.removed), ("changed", change.changed)):
            for slug in slugs:
                lines += [f"{name}: {slug}", *diffs.get(slug, "").splitlines()]
        facts: list[JsonValue] = [row.source, row.source_digest, row.base_url, row.sign_in_at, {**row.digests}]
        return build_consent(f"document of connector {row.name!r} at {row.source}", facts, lines)


@record(kw_only=True)
class DocumentChange:
    """The differences between the approved and the source's operations, by slug."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    base_url: str | None
    """The new base URL, if different."""
    sign_in_at: str | None = None
    """The new sign-in addresses, if different."""

    def __str__(self) -> str:
        parts = [f"its base URL becomes {self.base_url}"] if self.base_url else []
        parts += [f"its sign-in moves to {self.sign_in_at}"] if self.sign_in_at else []
        for name, slugs in (("added", self.added), ("removed", self.removed), ("changed", self.changed)):
            if slugs:
                more = ", …" if len(slugs) > _MAX_NAMED else ""
                parts.append(f"{len(slugs)} {name} ({', '.join(slugs[:_MAX_NAMED])}{more})")
        return "; ".join(parts)


def is_url(source: str) -> bool:
    """Return whether a source is a URL rather than a file."""
    return source.lower().startswith(("http://", "https://"))


async def read_bytes(source: str, web: WebSettings) -> bytes:
    """Read a source; URLs go through the guarded client; raises `ConnectorFault` if it can't be read."""
    if not is_url(source):
        try:
            return await to_thread.run_sync(read_small_file, source, LARGEST_BYTES)
        except OSError as exc:
            raise ConnectorFault(f"the document {source!r} cannot be read: {exc.strerror or exc}") from exc
    settings = replace(web, hard_bytes=LARGEST_BYTES)
    try:
        accept = "application/json, application/yaml;q=0.9, */*;q=0.5"
        answer = await WebClient(settings).fetch(source, accept=accept)
    except FetchError as exc:
        raise ConnectorFault(f"the document cannot be fetched: {exc}") from exc
    if isinstance(answer, CrossSiteRedirect):
        raise ConnectorFault(f"the document has moved to {answer.url}: name that address, if it is meant")
    if answer.status != _OK or answer.cut is not None:
        problem = f"the answer has the status {answer.status}" if answer.cut is None else f"it was cut: {answer.cut}"
        raise ConnectorFault(f"the document {answer.target.url} cannot be fetched: {problem}")
    return answer.body


def normalize_source(source: str, cwd: str) -> str:
    """Return a URL unchanged, or a file's absolute path."""
    return source if is_url(source) else os.path.abspath(os.path.join(cwd, os.path.expanduser(source)))


def examine_source(
    name: str, source: str, data: bytes, base_url: str | None, auth: ConnectorAuth | None
) -> SourceReading:
    """Parse a source, and build the row of a connector using its current content. Blocks.

    Raises `ConnectorFault` if the document can't be used, or there's no usable base URL or no such sign-in.
    """
    document = parse_document(data)
    base = base_url or find_server_url(document, source)
    if base is None:
        raise ConnectorFault(f"the document of {name!r} names no complete server URL: give it with --base-url")
    try:
        target = parse_url(base)
    except FetchError as exc:
        raise ConnectorFault(f"the base URL of {name!r} cannot be used: {exc}") from exc
    if "?" in target.path or "#" in base:
        raise ConnectorFault(f"the base URL of {name!r} has a query or a fragment: give it without one by --base-url")
    problem = find_path_problem(target.path)
    if problem is not None:
        raise ConnectorFault(f"the base URL {base[:200]!r} of {name!r} can't be used: {problem}")
    base = target.url.rstrip("/")
    scheme_name = sign_in_at = ""
    if isinstance(auth, OAuthReference):
        if base.startswith("http:") and not is_loopback(base):
            raise ConnectorFault(f"the base URL of {name!r} is not encrypted: no token is sent there (RFC 6750 §5.3)")
        scheme = choose_scheme(document, base, auth)
        scheme_name, sign_in_at = scheme.name, scheme.list_addresses(auth.grant)
        auth = replace(auth, scheme=scheme_name)
    hidden = frozenset[tuple[str, str]]() if auth is None else auth.sends
    operations, notes = list_operations(document, name, base, source, hidden, scheme_name)
    if not operations:
        raise ConnectorFault(f"the document of {name!r} has no operation that can be called")
    row = ConnectorRow(
        name=name,
        source=source,
        base_url=base,
        own_base_url=base_url is not None,
        auth=auth,
        source_digest=digest_bytes(data),
        digests=digest_definitions(document, operations, base),
        checked_ms=now_ms(),
        sign_in_at=sign_in_at,
    )
    return SourceReading(row=row, document=document, operations=operations, notes=notes)


def examine_again(row: ConnectorRow, data: bytes) -> SourceReading:
    """Parse the current bytes of a connector's source. Blocks.

    Raises `ConnectorFault` if the document can't be used any more.
    """
    return examine_source(row.name, row.source, data, row.base_url if row.own_base_url else None, row.auth)


def digest_bytes(data: bytes) -> str:
    """Digest a source's bytes."""
    return hashlib.sha256(data).hexdigest()


def find_change(row: ConnectorRow, data: bytes) -> DocumentChange | None:
    """Compare a source with the approved document. None if the difference affects no request. Blocks.

    Raises `ConnectorFault` if the document can't be used any more.
    """
    if digest_bytes(data) == row.source_digest:
        return None
    return compare_rows(row, examine_again(row, data).row)


def list_approved_operations(row: ConnectorRow, document: JsonObject) -> Sequence[OperationSpec]:
    """List the operations of a connector's approved document. Blocks."""
    scheme = row.oauth.scheme if row.oauth is not None else ""
    return list_operations(document, row.name, row.base_url, row.source, row.hidden_parameters, scheme)[0]


def diff_operations(row: ConnectorRow, approved: JsonObject, reading: SourceReading) -> Mapping[str, str]:
    """Show how operations differ from the approved document, as unified diffs by slug. Blocks."""
    from difflib import unified_diff  # noqa: PLC0415 — used only to show a change

    from induscode.deck.mcp.drift import pretty  # noqa: PLC0415 — used only to show a change

    documents = ((approved, list_approved_operations(row, approved)), (reading.document, reading.operations))
    old, new = ({spec.slug: list_definition(root, spec) for spec in specs} for root, specs in documents)
    diffs: dict[str, str] = {}
    for slug in dict.fromkeys((*new, *old)):
        before, after = pretty(old.get(slug)), pretty(new.get(slug))
        if before != after:
            diffs[slug] = "".join(unified_diff(before, after, f"{slug} (approved)", f"{slug} (now)", n=2))
    return diffs


def compare_rows(approved: ConnectorRow, present: ConnectorRow) -> DocumentChange | None:
    """Compare the operations of two rows. None if they're equal."""
    old: Mapping[str, str] = {slug: digest for slug, digest in approved.digests.items() if slug}
    new: Mapping[str, str] = {slug: digest for slug, digest in present.digests.items() if slug}
    change = DocumentChange(
        added=tuple(slug for slug in new if slug not in old),
        removed=tuple(slug for slug in old if slug not in new),
        changed=tuple(slug for slug in new if slug in old and new[slug] != old[slug]),
        base_url=present.base_url if present.base_url != approved.base_url else None,
        sign_in_at=present.sign_in_at if present.sign_in_at != approved.sign_in_at else None,
    )
    return change if str(change) else None
