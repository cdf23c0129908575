"""Consent: the facts shown to the user, and the digest that binds a yes to exactly those.

Every question (start this server, load this addon, approve this definition …) shows the lines and warnings of a
`Consent`. Every yes carries its digest, and `check_digest` rejects a yes to anything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal, TypeAlias

from indusagi.core.faults import CoreError
from indusagi.core.json import JsonValue, compact_json
from indusagi.core.records import record
from indusagi.core.text import escape_unseen

ConsentState: TypeAlias = Literal["trusted", "unknown", "changed"]
"""The user agreed to it as it is, never agreed, or agreed to an earlier version."""


class ConsentChangedError(CoreError):
    """The subject changed since the user looked at it."""


@record
class Consent:
    """A question of consent: the subject, its facts, and their digest."""

    subject: str
    """For example `server 'git' of /home/me/project/.mcp.json`."""
    digest: str
    """SHA-256 over the subject and every fact that consent covers."""
    lines: tuple[str, ...]
    """Every fact in full, one per line, with invisible characters escaped."""
    warnings: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """The subject, as the first line of the question."""
        return self.subject[:1].upper() + self.subject[1:]

    @property
    def details(self) -> tuple[str, ...]:
        """The lines of the question: the facts, then the warnings."""
        return (*self.lines, *(f"WARNING: {warning}" for warning in self.warnings))

    def check_digest(self, digest: str) -> None:
        """Raise `ConsentChangedError` if a yes carries the (full) digest of something else."""
        if digest != self.digest:
            raise ConsentChangedError(f"{self.subject}: it has changed since you looked; look at it again")


def build_consent(subject: str, facts: JsonValue, lines: Iterable[str], warnings: Iterable[str] = ()) -> Consent:
    """Build a consent question. The digest covers the subject and all of `facts`."""
    shown = tuple(map(escape_unseen, lines)), tuple(map(escape_unseen, warnings))
    return Consent(escape_unseen(subject), digest_facts([subject, facts]), *shown)


def digest_facts(facts: JsonValue, salt: str = "") -> str:
    """Hash facts. Use a salt for stored digests, so that a short secret can't be guessed from them."""
    text = salt + compact_json(facts, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
