"""Seals: nobody without a key can read, make up, change or repeat what nodes send each other and keep at the broker.

An author is the cluster (every node with its key) or one offering node (with its own key). An **envelope** is one
sealed value: AES-256-GCM (NIST SP 800-38D) with the place as associated data, so it counts nowhere else. Whether it was
seen before is up to its place: reports and requests are numbered, entries name their epoch. A channel has two keys of
its own, one for each direction, and numbers its messages (`ChannelCipher`).

An offering node may only write what carries its name: instances, leases and placements that begin with `NODE.`.
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
"""The first byte of an envelope; earlier versions of indus sent JSON."""
_NONCE_BYTES = 12
TAG_BYTES = 16
"""How much longer a sealed value is."""
_HEAD = struct.Struct("!cQ")
"""Kind and number of a message of a channel."""
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
        """Return the content; `None` if it was sealed with another key or for another place, or is damaged."""
        try:
            return self._open(nonce, data, place)
        except self._failures:
            return None


class Seal:
    """The secret of one author, for envelopes and channels."""

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
        """Return the seal of all nodes with the key of the cluster."""
        return cls(key.derive("traffic"))

    @classmethod
    def of_offer(cls, key: OfferKey) -> Seal:
        """Return the seal of a node that only offers its servers."""
        return cls(key.secret, key.node, key.serial)

    def derive(self, purpose: bytes) -> bytes:
        """Derive a key for one purpose (RFC 5869, the expansion of HKDF for 32 bytes)."""
        return hmac.digest(self._secret, purpose + b"\x01", hashlib.sha256)

    def may_write(self, name: str) -> bool:
        """Return whether the author may write an instance, a lease or a placement of this name."""
        return not self.author or name.startswith(f"{self.author}.")

    def seal(self, place: str, value: JsonObject) -> bytes:
        """Seal a value for one place."""
        nonce = os.urandom(_NONCE_BYTES)
        return self._head + nonce + self._cipher.seal(nonce, compact_json(value).encode(), place.encode())

    def open(self, place: str, data: bytes) -> JsonObject | None:
        """Return the value that this author has sealed for a place; `None` for anything else."""
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
    """Return the node and the serial that an envelope names, both empty for the cluster; `None`: not an envelope."""
    if len(data) < 2 or data[0] != _VERSION:
        return None
    node, _, serial = data[2 : 2 + data[1]].decode("utf-8", "replace").partition(":")
    return node, serial


@record
class Opened:
    """The content of an envelope, and who has sealed it."""

    value: JsonObject
    seal: Seal


async def _find_none(_node: str, _serial: str) -> Seal | None:
    return None


class SealRing:
    """The seal of this node, and those of the authors it can check."""

    def __init__(self, own: Seal, find_offer: Callable[[str, str], Awaitable[Seal | None]] = _find_none) -> None:
        self.own = own
        self._find_offer = find_offer
        """Returns the seal of an offering node, unless its key was revoked."""

    async def counts(self, seal: Seal) -> bool:
        """Return whether the key of an author wasn't revoked."""
        is_own = seal.author in {"", self.own.author}
        return is_own or await self._find_offer(seal.author, seal.serial) is not None

    async def open(self, place: str, data: bytes) -> Opened | None:
        """Open an envelope of any author; `None` if it's forged, of another place, or its key was revoked."""
        named = read_author(data)
        if named is None:
            return None
        seal: Seal | None = self.own
        if named[0] and self.own.author != named[0]:
            seal = await self._find_offer(*named) if not self.own.author else None
        value = None if seal is None else seal.open(place, data)
        return None if value is None or seal is None else Opened(value, seal)


class ReplayGuard:
    """Takes each number of each sender once, in any order within a window (as RFC 4303, section 3.4.3)."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        """The highest number of each sender, and which of those below were taken, as bits."""

    def take(self, sender: str, number: int) -> bool:
        """Return whether a number is new; it isn't from now on."""
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
    """Seals the messages of one end of a channel, and opens those of the other.

    Both keys follow from the secret of the node that listens, its subject and the inbox of the node that connects; the
    key of the way back from the inbox of the node that listens too. Inboxes are never used twice. A message that is
    sent back, or into another channel, therefore has the wrong key; one that is sent again has an old number.
    """

    def __init__(self, seal: Seal, subject: str, inbox: str, answers_at: str = "") -> None:
        """Make the cipher of the end that connects, or with `answers_at`, its inbox, of the end that listens."""
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
        """Return kind, number and content of a message; `None` if the other end hasn't sent it."""
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
