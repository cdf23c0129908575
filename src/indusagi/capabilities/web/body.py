"""The body of an answer, taken piece by piece: counted packed and unpacked, and cut in time.

What arrives is unpacked in small steps, so that a body that would grow without end costs no more
than one that is as long as is allowed.
"""

from __future__ import annotations

import zlib
from typing import Final, Literal, TypeAlias

from indusagi.capabilities.ports import FetchError

Cut: TypeAlias = Literal["size", "ratio", "ended early"]
"""Why a body is not whole."""
_STEP: Final = 64 * 1024
_SHORT: Final = 64 * 1024
"""Up to this size a body may have been packed as tightly as it likes."""
_GZIP: Final = zlib.MAX_WBITS | 16
PLAIN: Final = frozenset({"", "identity"})
PACKED: Final = frozenset({"gzip", "x-gzip"})


class EndedEarly(FetchError):
    """A body that broke off."""


class Body:
    """Collects a body up to a size."""

    def __init__(self, coding: str, cap: int, ratio: int) -> None:
        coding = coding.strip().lower()
        if coding not in PLAIN | PACKED:
            message = f"the server packed its answer as {coding[:40]!r}, which was not asked for"
            raise FetchError(message, code="unsupported", reason="coding")
        self._unpacker = zlib.decompressobj(_GZIP) if coding in PACKED else None
        self._members = 0
        self._padded = False
        self._cap = cap
        self._ratio = ratio
        self._data = bytearray()
        self.packed = 0
        """How many bytes have come over the wire."""
        self.cut: Cut | None = None

    @property
    def data(self) -> bytes:
        """What there is, unpacked."""
        return bytes(self._data)

    def feed(self, piece: bytes) -> bool:
        """Take a piece, and tell whether another one is wanted.

        Raises:
            FetchError: It is not packed the way the server said.
        """
        left = self._cap - self.packed
        self.packed += len(piece)
        if self._unpacker is None:
            self._data += piece[:left]
        else:
            self._unpack(piece[:left])
        if len(piece) > left:
            self.cut = self.cut or "size"
        return self.cut is None

    def finish(self, *, early: bool) -> None:
        """Say that nothing more comes, be it before the end."""
        unfinished = self._unpacker is not None and self.packed > 0 and not self._unpacker.eof
        if early or (unfinished and not self._padded):
            self.cut = self.cut or "ended early"

    def _unpack(self, piece: bytes) -> None:
        while piece and self.cut is None and self._unpacker is not None and not self._padded:
            try:
                grown = self._unpacker.decompress(piece, _STEP)
            except zlib.error as exc:
                # After the last member there may be padding, which every reader of gzip ignores.
                self._padded = self._members > 0
                if self._padded:
                    return
                message = f"the server said that its answer is packed, but it is not: {exc}"
                raise FetchError(message, code="failed", reason="coding") from None
            piece = self._unpacker.unconsumed_tail
            self._keep(grown, self.packed - len(piece))
            if self._unpacker.eof:
                piece = self._unpacker.unused_data
                self._members += 1
                self._unpacker = zlib.decompressobj(_GZIP) if piece else self._unpacker

    def _keep(self, grown: bytes, used: int) -> None:
        self._data += grown[: self._cap - len(self._data)]
        if len(self._data) > max(_SHORT, self._ratio * used):
            self.cut = "ratio"
        elif len(self._data) >= self._cap:
            self.cut = "size"
