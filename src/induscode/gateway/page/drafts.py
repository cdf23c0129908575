"""Servers that were shown on the page and aren't added yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from indusagi.core.records import record
from indusagi.core.text import format_count
from indusagi.interop.auth.secrets import SecretFiles
from induscode.core.consent import Consent, build_consent
from induscode.servers.config.trust import describe_row
from induscode.servers.plain_secrets import SecretMove, plan_move
from induscode.servers.plan import parse_server_row

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef
    from induscode.servers.config.rows import ServerRow


@record(kw_only=True)
class Draft:
    """A server that was shown and isn't added yet."""

    name: str
    fields: JsonObject = field(repr=False)
    path: str
    about: Sequence[str] = ()
    """Lines about where it comes from, and its sandbox."""
    warnings: Sequence[str] = ()
    definitions: Mapping[RemoteToolRef, JsonObject] | None = None
    """What it offered when it was tried, which is approved with it."""

    @property
    def row(self) -> ServerRow:
        """Its row, with its secrets as they'd be written."""
        move = self.plan_move()
        return parse_server_row(self.name, self.fields if move is None else move.build_row(), self.path, "user")

    def plan_move(self) -> SecretMove | None:
        """Plan to store its secrets apart. Blocks."""
        return plan_move(self.name, self.fields, SecretFiles().list_rows())

    def describe(self) -> Consent:
        """Describe all that adding it means. Blocks."""
        consent, move = describe_row(self.row), self.plan_move()
        lines: list[str] = [*consent.lines, *self.about, *([] if move is None else move.describe())]
        pins: list[JsonValue] = []
        if self.definitions is not None:
            lines.append(f"approves: {format_count(len(self.definitions), 'definition')} as listed")
            pins = [[ref.kind, ref.name, raw] for ref, raw in sorted(self.definitions.items(), key=str)]
        return build_consent(consent.subject, [self.fields, pins], lines, [*consent.warnings, *self.warnings])
