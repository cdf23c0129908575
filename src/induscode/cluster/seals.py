"""Seals: without a key, nobody can read, forge, change or replay what nodes send each other and store at the broker.

An author is the cluster (every node with its key) or one offering node (with its offer key). An **envelope** is one
sealed value: AES-256-GCM (NIST SP 800-38D) with the place as associated data, so it's only valid there. Replay
protection is up to the place: reports and requests are numbered, entries name their epoch. A channel has a key per
direction, and numbers its messages (`ChannelCipher`).

An offering node may only write names that start with `NODE.`: instances, leases and placements.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from indusagi.core.json import JsonObject, compact_json, is_json_object
from indusagi.core.records import record

if TYPE_CHECKING:
    from induscode.cluster.key import ClusterKey, OfferKey

_VERSION = 2
"""First byte of an envelope. Earlier versions of indus sent JSON."""
_NONCE_BYTES = 12
TAG_BYTES = 16
"""Overhead of a sealed value."""
_HEAD = struct.Struct("!cQ")
"""Kind and number of a channel message."""
HEAD_BYTES = _HEAD.size + TAG_BYTES
_WINDOW = 1_024
_MAX_SENDERS = 10_000


class _Cipher:
    """AES-256-GCM with one key."""

    __slots__ = ("_failures", "_open", "seal")

    def __init__(self, secret: bytes) -> None:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 — loads slowly
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 — loads slowly

        cipher = AESGCM(secret)
        self.seal, self._open = cipher.encrypt, cipher.decrypt
        self._failures = (InvalidTag, ValueError)

    def open(self, nonce: bytes, data: bytes, place: bytes) -> bytes | None:
        """Return the content, or `None` if it has another key or place, or is damaged."""
        try:
            return self._open(nonce, data, place)
        except self._failures:
            return None


class Seal:
    """One author's secret, for envelopes and channels."""

    def __init__(self, secret: bytes, author: str = "", serial: str = "") -> None:
        self.author = author
        """The offering node; empty for the cluster."""
        self.serial = serial
        tag = f"{author}:{serial}".encode() if author else b""
        self._head = bytes((_VERSION, len(tag))) + tag
        self._secret = secret
        self._cipher = _Cipher(self.derive(b"envelopes"))

    @classmethod
    def of_cluster(cls, key: ClusterKey) -> Seal:
        """Return the seal of all nodes with the cluster key."""
        return cls(key.derive("traffic"))

    @classmethod
    def of_offer(cls, key: OfferKey) -> Seal:
        """Return the seal of a node that only offers its servers."""
        return cls(key.secret, key.node, key.serial)

    def derive(self, purpose: bytes) -> bytes:
        """Derive a key for one purpose (HKDF-Expand to 32 bytes, RFC 5869)."""
        return hmac.digest(self._secret, purpose + b"\x01", hashlib.sha256)

    def may_write(self, name: str) -> bool:
        """Return whether the author may write an instance, lease or placement with this name."""
        return not self.author or name.startswith(f"{self.author}.")

    def seal(self, place: str, value: JsonObject) -> bytes:
        """Seal a value for one place."""
        nonce = os.urandom(_NONCE_BYTES)
        return self._head + nonce + self._cipher.seal(nonce, compact_json(value).encode(), place.encode())

    def open(self, place: str, data: bytes) -> JsonObject | None:
        """Return the value this author sealed for a place, or `None`."""
        start = len(self._head)
        if not data.startswith(self._head):
            return None
        nonce, rest = data[start : start + _NONCE_BYTES], data[start + _NONCE_BYTES :]
        text = self._cipher.open(nonce, rest, place.encode())
        if text is None:
            return None
        value: Any = json.loads(text)
        return value if is_json_object(value) else None


def read_author(data: bytes) -> tuple[str, str] | None:
    """Return an envelope's node and serial, both empty for the cluster. `None` if it isn't an envelope."""
    if len(data) < 2 or data[0] != _VERSION:
        return None
    node, _, serial = data[2 : 2 + data[1]].decode("utf-8", "replace").partition(":")
    return node, serial


@record
class Opened:
    """The content of an envelope, and its author's seal."""

    value: JsonObject
    seal: Seal


async def _find_none(_node: str, _serial: str) -> Seal | None:
    return None


class SealRing:
    """This node's seal, and the seals of authors it can check."""

    def __init__(self, own: Seal, find_offer: Callable[[str, str], Awaitable[Seal | None]] = _find_none) -> None:
        self.own = own
        self._find_offer = find_offer
        """Returns an offering node's seal, unless its key was revoked."""

    async def counts(self, seal: Seal) -> bool:
        """Return whether an author's key is still valid."""
        is_own = seal.author in {"", self.own.author}
        return is_own or await self._find_offer(seal.author, seal.serial) is not None

    async def open(self, place: str, data: bytes) -> Opened | None:
        """Open any author's envelope. `None` if it's forged, for another place, or its key was revoked."""
        named = read_author(data)
        if named is None:
            return None
        seal: Seal | None = self.own
        if named[0] and self.own.author != named[0]:
            seal = await self._find_offer(*named) if not self.own.author else None
        value = None if seal is None else seal.open(place, data)
        return None if value is None or seal is None else Opened(value, seal)


class ReplayGuard:
    """Accepts each number of each sender once, in any order within a window (like RFC 4303, section 3.4.3)."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        """Each sender's highest number, and a bit mask of the accepted ones below it."""

    def take(self, sender: str, number: int) -> bool:
        """Return whether a number is new, and remember it."""
        highest, bits = self._seen.get(sender, (0, 0))
        if number > highest:
            bits = ((bits << min(number - highest, _WINDOW)) | 1) & ((1 << _WINDOW) - 1)
            highest = number
        else:
            bit = 1 << (highest - number) if highest - number < _WINDOW else 0
            if not bit or bits & bit:
                return False
            bits |= bit
        if sender not in self._seen and len(self._seen) >= _MAX_SENDERS:
            del self._seen[next(iter(self._seen))]
        self._seen[sender] = highest, bits
        return True


class ChannelCipher:
    """Seals the messages of one end of a channel, and opens the other end's.

    Both keys are derived from the listening node's secret, its subject and the connecting node's inbox; the key for the
    way back also from the listening node's inbox. Inboxes are never reused. So a message sent back, or into another
    channel, has the wrong key, and a replayed one has an old number.
    """

    def __init__(self, seal: Seal, subject: str, inbox: str, answers_at: str = "") -> None:
        """Create the connecting end's cipher, or with `answers_at`, its inbox, the listening end's."""
        self._seal = seal
        self._way = f"channel\0{subject}\0{inbox}".encode()
        self._listens = bool(answers_at)
        forward = _Cipher(seal.derive(self._way))
        back = self._derive_back(answers_at) if answers_at else None
        self._sending, self._receiving = (back or forward), (forward if answers_at else None)
        self._sent = 0

    def _derive_back(self, answers_at: str) -> _Cipher:
        return _Cipher(self._seal.derive(self._way + b"\0" + answers_at.encode()))

    def encrypt(self, kind: bytes, data: bytes) -> bytes:
        """Return the next message."""
        self._sent += 1
        head = _HEAD.pack(kind, self._sent)
        return head + self._sending.seal(head.rjust(_NONCE_BYTES, b"\0"), data, head)

    def decrypt(self, data: bytes, reply: str) -> tuple[bytes, int, bytes] | None:
        """Return a message's kind, number and content, or `None` if the other end didn't send it."""
        if len(data) < HEAD_BYTES:
            return None
        head = data[: _HEAD.size]
        cipher = self._receiving or self._derive_back(reply)
        content = cipher.open(head.rjust(_NONCE_BYTES, b"\0"), data[_HEAD.size :], head)
        if content is None:
            return None
        self._receiving = cipher
        kind, number = _HEAD.unpack(head)
        return kind, number, content


def is_opening(data: bytes) -> bool:
    """Return whether a message claims to be the first of a channel."""
    return len(data) >= HEAD_BYTES and _HEAD.unpack_from(data)[1] == 1
