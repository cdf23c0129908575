"""Consent: exactly what a user was shown, and the digest that binds a yes to it.

Every question of indus (start this server, load this addon, approve this definition …) shows the lines and warnings
of a `Consent`. Every yes carries its digest, and `check_digest` refuses a yes to anything else.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.faults import CoreError
from indusagi.core.json import compact_json
from indusagi.core.records import record
from indusagi.core.text import escape_unseen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from indusagi.core.json import JsonValue

ConsentState: TypeAlias = Literal["trusted", "unknown", "changed"]
"""The user agreed to it as it is, never agreed to it, or agreed to it as it was before."""


class ConsentChangedError(CoreError):
    """A yes to something that has changed since the user looked."""


@record
class Consent:
    """What a user is asked to agree to."""

    subject: str
    """What it's about: `server 'git' of /home/me/project/.mcp.json`."""
    digest: str
    """SHA-256 over the subject and every fact that consent covers."""
    lines: tuple[str, ...]
    """Every fact in full, one per line; characters without a glyph are escaped."""
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
        """Check that a yes was given to this.

        Args:
            digest: The digest the yes carries, in full.

        Raises:
            ConsentChangedError: The yes was given to something else.
        """
        if digest != self.digest:
            raise ConsentChangedError(f"{self.subject}: it has changed since you looked; look at it again")


def build_consent(subject: str, facts: JsonValue, lines: Iterable[str], warnings: Iterable[str] = ()) -> Consent:
    """Build the question about a subject. The digest covers the subject and all of `facts`."""
    shown = tuple(map(escape_unseen, lines)), tuple(map(escape_unseen, warnings))
    return Consent(escape_unseen(subject), digest_facts([subject, facts]), *shown)


def digest_facts(facts: JsonValue, salt: str = "") -> str:
    """Digest facts. Whatever is stored has a salt, so that nobody can guess a short secret from its digest."""
    text = salt + compact_json(facts, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
