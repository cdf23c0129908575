"""What a conversation has read of files, kept with it, so that it holds after `--continue`.

A row names the path, the digest of the bytes and the lines that were shown. A file that has changed
since has another digest: it counts as changed, and the tools say so.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from indusagi.capabilities.read_state import ReadState

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from induscode.session.transcript import Transcript

_OP = "read"


class ConversationReads(ReadState):
    """The read state of a conversation: what its log holds, and what is read from now on."""

    def __init__(self, transcript: Transcript) -> None:
        super().__init__()
        self._transcript = transcript
        self._unkept: deque[dict[str, str | int]] = deque()
        for row in transcript.rows():
            if row.get("op") == _OP:
                self._restore(row)

    def _restore(self, row: JsonObject) -> None:
        path, digest = row.get("path"), row.get("digest")
        first, last = row.get("first"), row.get("last")
        if isinstance(path, str) and isinstance(digest, str):
            lines = (first, last) if isinstance(first, int) and isinstance(last, int) else None
            super().record(path, digest, lines)
        elif isinstance(path, str):
            super().forget(path)

    def record(self, path: str, digest: str, lines: tuple[int, int] | None = None) -> None:
        """Remember that the bytes with this digest are what stood at `path`."""
        super().record(path, digest, lines)
        row: dict[str, str | int] = {"path": path, "digest": digest}
        if lines is not None:
            row |= {"first": lines[0], "last": lines[1]}
        self._unkept.append(row)

    def forget(self, path: str) -> None:
        """Drop what is known of `path`; an unknown one is fine."""
        super().forget(path)
        self._unkept.append({"path": path})

    def keep(self, message: JsonObject) -> None:
        """Add a message to the conversation, and what was read on the way to it. It blocks.

        In this order: what was read without being told to the model does not count.
        """
        self._transcript.keep(message)
        while self._unkept:
            self._transcript.mark(_OP, **self._unkept.popleft())
