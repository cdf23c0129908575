"""What there is to know of a whole text file, gathered chunk by chunk.

UTF-16 and UTF-32 become UTF-8 on the way. Everything else stays the bytes it is until the encoding
is known, which can be at the very end of the file.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from indusagi.capabilities.files.text.codec import (
    SAMPLE_BYTES,
    SAMPLE_LEAD_BYTES,
    TextForm,
    guess_encoding,
    high_bytes,
    line_ending_of,
    mark_of,
    new_digest,
    sample_at,
)
from indusagi.capabilities.files.text.sniff import HEAD_BYTES

if TYPE_CHECKING:
    from typing import BinaryIO


class NarrowReader:
    """Turns the bytes of a file into bytes in which a newline is one byte, and ends a line."""

    def __init__(self, encoding: str, *, at_returns: bool) -> None:
        self.encoding = encoding
        self.at_returns = at_returns
        """Lines end in a carriage return, and there is no newline."""
        self.damaged = False
        self._decoder: codecs.IncrementalDecoder | None = None
        if encoding != "utf-8":
            self._decoder = codecs.getincrementaldecoder(encoding)()

    def another(self) -> NarrowReader:
        """Make a reader for the same file that may start at any place of `Whole.places`."""
        return NarrowReader(self.encoding, at_returns=self.at_returns)

    def narrow(self, chunk: bytes, *, final: bool = False) -> bytes:
        """Make UTF-8 of UTF-16 or UTF-32; anything else stays as it is."""
        decoder = self._decoder
        if decoder is None:
            return chunk
        before = decoder.getstate()
        try:
            text = decoder.decode(chunk, final)
        except UnicodeDecodeError:
            self.damaged = True
            self._decoder = decoder = codecs.getincrementaldecoder(self.encoding)("replace")
            decoder.setstate(before)
            text = decoder.decode(chunk, final)
        return text.encode("utf-8")

    def newlines(self, data: bytes) -> bytes:
        """Make newlines of the carriage returns that end lines."""
        return data.replace(b"\r", b"\n") if self.at_returns else data


class Whole:
    """Counts, checks and hashes a file as it goes by."""

    def __init__(self, head: bytes, *, at_returns: bool | None = None) -> None:
        """Start with how the file begins.

        Args:
            head: Its first bytes; they are fed all the same.
            at_returns: Whether lines end in carriage returns, where that is known already: how the
                file begins is then not asked.
        """
        self.bom, encoding = mark_of(head)
        self.digest = new_digest()
        self.digest.update(self.bom)
        self.size = len(self.bom)
        self.places: list[tuple[int, int]] = []
        """Where chunks start, and in which line, counted from 1."""
        self._judged = at_returns is None
        if at_returns is None:
            sample = NarrowReader(encoding, at_returns=False).narrow(head[len(self.bom) :])
            # At the end of a head a newline may follow on a return, at the end of a file not.
            returns = sample if len(head) < HEAD_BYTES else sample[:-1]
            at_returns = b"\r" in returns and b"\n" not in sample
        self.reader = NarrowReader(encoding, at_returns=at_returns)
        self._wide = encoding != "utf-8"
        self._crlf = self._lf = self._cr = 0
        self._last = b""
        self._newlines = 0
        self._ended = True
        self._utf_8 = codecs.getincrementaldecoder("utf-8")()
        self._odd_at: int | None = None
        """The first byte that is not UTF-8, counted from the start of the file."""
        self._high = 0
        """How many bytes before that one are not ASCII."""

    @property
    def total(self) -> int:
        """How many lines went by; the last one need not be ended."""
        return self._newlines + (not self._ended)

    @property
    def misjudged(self) -> bool:
        """Whether lines were taken to end in returns, and then there came a newline."""
        return self._judged and self.reader.at_returns and self._lf > 0

    @property
    def overlooked(self) -> bool:
        """Whether only returns went by that were not taken to end lines."""
        return self._judged and not self.reader.at_returns and self._cr > 0 and self._lf == 0

    @property
    def crlf(self) -> int:
        """How many lines end in CRLF."""
        return self._crlf

    def feed(self, chunk: bytes) -> bytes:
        """Take the next chunk, without the mark; give its lines, each ended by a newline."""
        self.places.append((self.size, self._newlines + 1))
        self.digest.update(chunk)
        data = self.reader.narrow(chunk)
        self._look_at(data)
        self.size += len(chunk)
        return self._cut(self.reader.newlines(data))

    def finish(self) -> bytes:
        """Give what was held back, at the end of the file."""
        data = self.reader.narrow(b"", final=True)
        self._look_at(data)
        if not self._wide and self._odd_at is None:
            pending = len(self._utf_8.getstate()[0])
            self._odd_at = self.size - pending if pending else None
            self._high -= pending
        return self._cut(self.reader.newlines(data))

    def form(self, file: BinaryIO) -> TextForm:
        """Tell how the file is text; may read a sample of it again."""
        encoding, guessed = self.reader.encoding, False
        damaged = self.reader.damaged
        if self._odd_at is not None and not self.bom:
            encoding = guess_encoding(_sample(file, self._odd_at), self._high)
            guessed = encoding != "utf-8"
        return TextForm(
            encoding=encoding,
            bom=self.bom,
            line_ending=line_ending_of(self._crlf, self._lf - self._crlf, self._cr - self._crlf),
            final_newline=self._last in {b"\n", b"\r"},
            guessed=guessed,
            damaged=damaged or (self._odd_at is not None and not guessed),
        )

    def _look_at(self, data: bytes) -> None:
        if not data:
            return
        self._lf += data.count(b"\n")
        self._cr += data.count(b"\r")
        self._crlf += data.count(b"\r\n") + (self._last == b"\r" and data.startswith(b"\n"))
        self._last = data[-1:]
        if not self._wide and self._odd_at is None:
            self._check(data)

    def _check(self, data: bytes) -> None:
        pending = len(self._utf_8.getstate()[0])
        if data.isascii() and not pending:
            return
        try:
            self._utf_8.decode(data)
            self._high += high_bytes(data)
        except UnicodeDecodeError as exc:
            at = exc.start - pending
            self._odd_at = self.size + at
            # A character that began in the last chunk was counted there.
            self._high += high_bytes(data[:at]) if at >= 0 else at

    def _cut(self, data: bytes) -> bytes:
        if data:
            self._newlines += data.count(b"\n")
            self._ended = data.endswith(b"\n")
        return data


def _sample(file: BinaryIO, at: int) -> bytes:
    start = max(0, at - SAMPLE_LEAD_BYTES)
    file.seek(start)
    data = file.read(at - start + SAMPLE_BYTES)
    return sample_at(data[: at - start], data[at - start :])
