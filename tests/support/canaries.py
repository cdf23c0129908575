"""Canaries: secrets of tests that are found again in any data, whole or in part, plain or encoded."""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_CHARS = 14
_ESCAPED = '"+%/<&'
"""What JSON, URLs, shells and HTML escape."""
_SAFE = "-"


class Canary(NamedTuple):
    """One secret: two words that occur nowhere else, which every escape leaves as they are, and a text between them."""

    source: str
    value: str

    def list_forms(self) -> Iterator[tuple[str, bytes]]:
        """Yield what to look for, with the name of the form."""
        for word in (self.value[:_CHARS].encode(), self.value[-_CHARS:].encode()):
            yield "plain", word
            yield "hex", word.hex().encode()
            for shift in range(3):
                # The characters that depend on the word alone, wherever it begins.
                encoded = base64.b64encode(bytes(shift) + word)
                yield "base64", encoded[(0, 2, 3)[shift] : (shift + len(word)) * 8 // 6]


class Aviary:
    """The canaries of a test by their source, and everything that indus has written, shown or sent, by its sink."""

    def __init__(self) -> None:
        self.canaries: dict[str, Canary] = {}
        self.sinks: dict[str, list[bytes]] = defaultdict(list)

    def plant(self, source: str, *, safe: bool = False) -> str:
        """Give the secret of a source; with `safe`, one that any header and file can hold."""
        digest = hashlib.sha256(source.encode()).hexdigest()
        between = _SAFE if safe else _ESCAPED
        value = f"Qz{digest[: _CHARS - 2]}{between}zQ{digest[_CHARS : 2 * _CHARS - 2]}"
        return self.canaries.setdefault(source, Canary(source, value)).value

    def add(self, source: str, value: str) -> None:
        """Add a secret that indus has made."""
        self.canaries[source] = Canary(source, value)

    def see(self, sink: str, *data: bytes | str) -> None:
        """Add what a sink got."""
        self.sinks[sink] += [
            part if isinstance(part, bytes) else part.encode(errors="surrogateescape") for part in data
        ]

    def find(self, data: bytes) -> frozenset[tuple[str, str]]:
        """Return the sources of the canaries in data, with the form they have there."""
        forms = [(one.source, form) for one in self.canaries.values() for form in one.list_forms()]
        return frozenset((source, form) for source, (form, needle) in forms if needle in data)

    def list_hits(self) -> Sequence[tuple[str, str, str]]:
        """List the source, sink and form of everything found where it doesn't belong."""
        found = {(sink, self.find(b"\0".join(parts))) for sink, parts in self.sinks.items()}
        return sorted((source, sink, form) for sink, hits in found for source, form in hits)

    def format_table(self) -> str:
        """Format how many canaries of each source are in each sink."""
        hits = [(source, sink) for source, sink, _ in self.list_hits()]
        heads = [f"{number}: {sink}" for number, sink in enumerate(self.sinks, 1)]
        rows = [
            " ".join([f"{source:24}", *(str(hits.count((source, sink))) for sink in self.sinks)])
            for source in self.canaries
        ]
        return "\n".join([*heads, *rows, ""])


def read_files(folder: Path, but: Sequence[Path] = ()) -> Iterator[tuple[str, bytes]]:
    """Yield the relative names and contents of all files below a folder, except some."""
    for path in sorted(folder.rglob("*")):
        if path not in but:
            data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            yield str(path.relative_to(folder)), data
