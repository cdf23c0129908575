"""How the bytes of a file are text: its encoding, its mark, its line endings, and the way back.

The order is fixed: a byte order mark, strict UTF-8, a guess from a sample, and what never fails.
Whatever was decided, the way back gives the same bytes: a file whose encoding was guessed wrongly
looks odd, and no byte of it is lost. UTF-16 and UTF-32 are only known by their mark.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import re
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

LineEnding: TypeAlias = Literal["lf", "crlf", "cr", "mixed", "none"]

CHUNK_BYTES = 256 * 1024
"""How much of a file is looked at in one go: a cancelled reader notices after each."""
SAMPLE_BYTES = 16 * 1024
"""How much of a file an encoding is guessed from."""
SAMPLE_LEAD_BYTES = 1024
"""How far before the first byte that is not UTF-8 the start of its line is looked for."""
_MARKS = (
    # A mark of UTF-32 begins like one of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WIDER = {"gb2312": "gb18030"}
"""What is meant by the first in practice: it lacks letters that stand in many names of people."""
_SURE = 0.5
"""Below this confidence a guess is worse than the encoding most such files have."""
_VALID_SHARE = 4
"""So many bytes of UTF-8 for each broken one: in other encodings, pairs look like it by chance."""
_LONGEST_WORD = 64
_LETTERS = re.compile(rb"[A-Za-z]+")
_PLAIN = bytes(range(0x20, 0x7F)) + b"\t\r\n"
_HIGH = bytes(range(0x80, 0x100))
_CONTROLS = bytes(range(0x80, 0xA0))
"""Control characters in Latin-1, which no text has; quotes and dashes in windows-1252."""


class Digest(Protocol):
    """A digest that is taken piece by piece."""

    def update(self, data: bytes, /) -> None:
        """Take the next piece."""
        ...

    def hexdigest(self) -> str:
        """Give it in hexadecimal digits."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TextForm:
    """Everything about a text file that its characters do not say."""

    encoding: str = "utf-8"
    """As Python names it; without the mark."""
    bom: bytes = b""
    """The byte order mark the file begins with; not a part of the text."""
    line_ending: LineEnding = "none"
    final_newline: bool = False
    """Whether the last line is ended like the others."""
    guessed: bool = False
    """The file does not say its encoding, and it is not UTF-8."""
    damaged: bool = False
    """Some bytes are no characters in this encoding; in a text they stand as lone surrogates."""

    @property
    def newline(self) -> str:
        """What ends a line that is added; a file of several kinds, or of none, gets LF."""
        return {"crlf": "\r\n", "cr": "\r"}.get(self.line_ending, "\n")

    @property
    def wide(self) -> bool:
        """Whether a line ending is more than one byte: UTF-16 or UTF-32."""
        return self.encoding.startswith(("utf-16", "utf-32"))


def decode_lossless(data: bytes) -> tuple[str, TextForm]:
    """Read all of a file as text such that `encode` gives back the same bytes, whatever they are.

    Bytes that are no text come out as text too: ask `is_text`. Line endings stay as they are. A
    guess loads a library and takes up to a tenth of a second: not for the event loop.
    """
    bom, encoding = mark_of(data)
    body = data[len(bom) :]
    if bom:
        found = _exactly(body, encoding)
        if found is None:  # cut off inside a character: bytes are all that can be said of it
            return _as_bytes(data)
        return found, _formed(found, encoding, bom=bom)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as exc:
        encoding = guess_encoding(_sample(body, exc.start), high_bytes(body[: exc.start]))
    else:
        return text, _formed(text, "utf-8")
    found = _exactly(body, encoding)
    if found is None:
        return _as_bytes(data)
    return found, _formed(found, encoding, guessed=encoding != "utf-8")


def encode(text: str, form: TextForm) -> bytes:
    """Give the bytes of a whole file: the inverse of `decode_lossless`.

    Raises:
        OSError: With EILSEQ; the encoding has no such character.
    """
    return form.bom + _encoded(text, form, _lossless(form.encoding))


def encode_piece(text: str, form: TextForm) -> bytes:
    """Give the bytes of a text that is to stand in a file of this form; no mark is added.

    Raises:
        OSError: With EILSEQ; the encoding has no such character, or it is half a surrogate pair.
    """
    return _encoded(text, form, "strict")


def is_text(text: str) -> bool:
    """Tell whether what was decoded is text: whatever holds a NUL is not."""
    return "\0" not in text


def new_digest() -> Digest:
    """Start the digest by which a file's content is known to the read state."""
    return hashlib.sha256()


def digest_bytes(data: bytes) -> str:
    """Give that digest of a whole file."""
    found = new_digest()
    found.update(data)
    return found.hexdigest()


def mark_of(data: bytes) -> tuple[bytes, str]:
    """Find the byte order mark at the start of a file, and the encoding it stands for."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return mark, encoding
    return b"", "utf-8"


def high_bytes(data: bytes) -> int:
    """Count the bytes that are not ASCII."""
    return 0 if data.isascii() else len(data) - len(data.translate(None, _HIGH))


def guess_encoding(sample: bytes, valid_before: int = 0) -> str:
    """Name the encoding of text that is not UTF-8 as a whole; only ASCII supersets are named.

    UTF-8 it is all the same if most of what is not ASCII is: then a few bytes are broken.

    Args:
        sample: What stands around the first byte that is not UTF-8.
        valid_before: How many bytes before that one are not ASCII, and so were UTF-8.
    """
    broken = len(sample) - len(sample.decode("utf-8", "ignore").encode("utf-8"))
    if valid_before + high_bytes(sample) - broken > _VALID_SHARE * broken:
        return "utf-8"
    import chardet  # noqa: PLC0415 — only for a file that is not UTF-8

    has_controls = len(sample) != len(sample.translate(None, _CONTROLS))
    western = "cp1252" if has_controls else "latin-1"
    guess = chardet.detect(shorten_words(sample))
    name = guess["encoding"]
    if name is None or guess["confidence"] < _SURE or not _is_usable(name):
        return western
    # German is easily taken for Turkish; where both say the same, the common one is told.
    same = sample.decode(name, "replace") == sample.decode(western, "replace")
    found = codecs.lookup(name).name
    return western if same else _WIDER.get(found, found)


def shorten_words(sample: bytes) -> bytes:
    """Cut long words short, for chardet.

    It looks for words in time that is quadratic in their length, and nobody else runs meanwhile.
    """
    return _LETTERS.sub(lambda word: word[0][:_LONGEST_WORD], sample)


def sample_at(before: bytes, after: bytes) -> bytes:
    """Make the sample for a guess from what stands around the first byte that is not UTF-8."""
    lead = before[-SAMPLE_LEAD_BYTES:]
    return lead[lead.rfind(b"\n") + 1 :] + after[:SAMPLE_BYTES]


def line_ending_of(crlf: int, lf: int, cr: int) -> LineEnding:
    """Name the line endings of a file that has so many of each kind."""
    counts: dict[LineEnding, int] = {"crlf": crlf, "lf": lf, "cr": cr}
    kinds: list[LineEnding] = [kind for kind, count in counts.items() if count]
    if not kinds:
        return "none"
    return kinds[0] if len(kinds) == 1 else "mixed"


def _sample(body: bytes, at: int) -> bytes:
    return sample_at(body[max(0, at - SAMPLE_LEAD_BYTES) : at], body[at : at + SAMPLE_BYTES])


def _is_usable(name: str) -> bool:
    try:
        return _PLAIN.decode(name) == _PLAIN.decode("ascii")
    except (LookupError, UnicodeDecodeError):
        return False


def _lossless(encoding: str) -> str:
    # Half a surrogate pair is possible in UTF-16, and no byte of it is invalid.
    return "surrogatepass" if encoding.startswith(("utf-16", "utf-32")) else "surrogateescape"


def _exactly(body: bytes, encoding: str) -> str | None:
    """Decode, if the way back leads to the same bytes; some encodings have two for one letter."""
    errors = _lossless(encoding)
    try:
        text = body.decode(encoding, errors)
        return text if text.encode(encoding, errors) == body else None
    except UnicodeError:
        return None


def _as_bytes(data: bytes) -> tuple[str, TextForm]:
    text = data.decode("latin-1")
    return text, _formed(text, "latin-1", guessed=True)


def _formed(text: str, encoding: str, *, bom: bytes = b"", guessed: bool = False) -> TextForm:
    crlf = text.count("\r\n")
    return TextForm(
        encoding=encoding,
        bom=bom,
        line_ending=line_ending_of(crlf, text.count("\n") - crlf, text.count("\r") - crlf),
        final_newline=text.endswith(("\n", "\r")),
        guessed=guessed,
        damaged=not text.isascii() and _has_surrogates(text),
    )


def _has_surrogates(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _encoded(text: str, form: TextForm, errors: str) -> bytes:
    try:
        return text.encode(form.encoding, errors)
    except UnicodeEncodeError as exc:
        letter = exc.object[exc.start]
        number = f"U+{ord(letter):04X}"
        if _has_surrogates(letter):
            message = f"{number} is half a surrogate pair and no character: write the whole one"
            raise OSError(errno.EILSEQ, message) from exc
        shown = f"{letter!r} ({number})" if letter.isprintable() else number
        message = (
            f"{shown} cannot be written in {form.encoding}, the encoding of the file: "
            "use other characters, or convert the file to UTF-8 first"
        )
        raise OSError(errno.EILSEQ, message) from exc
