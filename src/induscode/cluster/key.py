"""The cluster key: seals data in transit between nodes and at rest at the broker, and proves who wrote it.

All broker data of a cluster (ledgers, call records, shared servers, consents, rules) is encrypted and authenticated
with AES-256-GCM (NIST SP 800-38D) under keys derived from one secret file. The name of the place is the associated
data, so an administrator or another user of the broker can't read a value, write one, or move one to another place. The
operator copies the file to every node; it never travels through the broker.

The file holds the current key and its predecessors. A replaced key opens only messages of the ledgers and call records
up to the last one at that time. Anything sealed with it later isn't from a node.

A machine that only offers servers gets an offer key instead. It's derived from the cluster key, the node's name and a
serial, so every node can compute it, and its holder can compute nothing else.

A message between nodes has an author: the cluster (every node with its key) or one offering node. An **envelope** is
one sealed value with its place as associated data, so it's only valid there. Replay protection is up to the place:
reports and requests are numbered, entries name their epoch. A channel has a key per direction, and numbers its messages
(`ChannelCipher`). An offering node may only write names that start with `NODE.`: instances, leases and placements.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import stat
import struct
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any, Literal, TypeAlias

from indusagi.core.app_dirs import create_private_file, make_private_dir, read_small_file, replace_file
from indusagi.core.json import JsonObject, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import SecretText

SealedStream: TypeAlias = Literal["ledger", "calls"]
"""A stream whose messages stay sealed with the key of their time."""
_FORM = b"indus-cluster-key-1:"
_PREVIOUS_FORM = b"indus-cluster-previous-key-1:"
_OFFER_FORM = b"indus-cluster-offer-key-1:"
_MAX_PREVIOUS = 500
_KEY_BYTES = 32
_NONCE_BYTES = 12
_FILE_BYTES = 65_536
_STORED_VERSION = b"\x01"
"""First byte of a value at the broker."""
_MAX_BYTES = 64 * 1024 * 1024
"""Size limit of an unsealed value. A leaked key's messages stay in the streams after a rotation, and every node that
reads them would decompress a megabyte to a gigabyte."""


class UnsealedError(ValueError):
    """The value wasn't sealed with this key for this place, or is damaged."""


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


def _derive(secret: bytes, purpose: bytes) -> bytes:
    """Derive a key for one purpose (HKDF-Expand to 32 bytes, RFC 5869)."""
    return hmac.digest(secret, purpose + b"\x01", hashlib.sha256)


@record
class PreviousKey:
    """A replaced key, and the numbers of the last messages sealed with it."""

    key: ClusterKey
    ledger: int
    calls: int


@record
class OfferKey:
    """The key of a node that only offers its servers."""

    node: str
    serial: str
    """Distinguishes the keys issued to this node."""
    secret: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Encode it for a key file."""
        secret = base64.urlsafe_b64encode(self.secret)
        return b"%b%b:%b:%b\n" % (_OFFER_FORM, self.node.encode(), self.serial.encode(), secret)


class ClusterKey:
    """A secret, the keys derived from it, and its predecessors, latest first."""

    def __init__(self, secret: bytes, previous: Sequence[PreviousKey] = ()) -> None:
        self._secret = secret
        self.previous = previous
        self._cipher = _Cipher(self.derive("sealing"))

    def derive(self, purpose: str) -> bytes:
        """Derive a key for one purpose."""
        return _derive(self._secret, b"indus cluster " + purpose.encode())

    def digest(self, purpose: str, text: str) -> str:
        """Digest a text so that only holders of the key can tell what it was."""
        return hmac.digest(self.derive(purpose), text.encode("utf-8", "surrogatepass"), hashlib.sha256).hex()

    def derive_offer(self, node: str, serial: str) -> OfferKey:
        """Derive the key of a node that only offers its servers."""
        return OfferKey(node, serial, self.derive(f"offer {node}:{serial}"))

    def seal(self, place: str, data: bytes) -> bytes:
        """Compress, encrypt and authenticate a value for one place."""
        nonce = os.urandom(_NONCE_BYTES)
        return _STORED_VERSION + nonce + self._cipher.seal(nonce, zlib.compress(data, 1), place.encode())

    def unseal(self, place: str, sealed: bytes) -> bytes:
        """Return the value sealed for this place, or raise `UnsealedError`."""
        nonce, rest = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        if not sealed.startswith(_STORED_VERSION):
            raise UnsealedError("it is not sealed")
        packed = self._cipher.open(nonce, rest, place.encode())
        if packed is None:
            raise UnsealedError("it was not sealed with the key of this cluster for this place")
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, _MAX_BYTES)
        if unpacker.unconsumed_tail:
            raise UnsealedError(f"it is larger than {_MAX_BYTES:,} bytes")
        return data

    def has_sealed(self, place: str, sealed: bytes) -> bool:
        """Return whether a value was sealed with this key for a place."""
        try:
            self.unseal(place, sealed)
        except UnsealedError:
            return False
        return True

    def unseal_message(self, stream: SealedStream, place: str, sealed: bytes, number: int) -> bytes:
        """Unseal a stream message, which an earlier key of its time may have sealed. Raises like `unseal`."""
        try:
            return self.unseal(place, sealed)
        except UnsealedError:
            for one in self.previous:
                if number <= (one.ledger if stream == "ledger" else one.calls):
                    with suppress(UnsealedError):
                        return one.key.unseal(place, sealed)
            raise

    def replace(self, *, ledger: int, calls: int) -> ClusterKey:
        """Create the next key. This one opens messages up to these numbers."""
        before = (PreviousKey(ClusterKey(self._secret), ledger, calls), *self.previous)
        return ClusterKey(os.urandom(_KEY_BYTES), before[:_MAX_PREVIOUS])

    def follows(self, old: ClusterKey) -> bool:
        """Return whether this key was created to replace another."""
        return bool(self.previous) and hmac.compare_digest(self.previous[0].key._secret, old._secret)  # noqa: SLF001 — of the same class

    def limit_previous(self, *, ledger: int, calls: int) -> ClusterKey:
        """Return this key with other numbers for its predecessor."""
        first = PreviousKey(self.previous[0].key, ledger, calls)
        return ClusterKey(self._secret, (first, *self.previous[1:]))

    def encode(self) -> bytes:
        """Encode it for a key file."""
        lines = [_FORM + base64.urlsafe_b64encode(self._secret)]
        for one in self.previous:
            secret = base64.urlsafe_b64encode(one.key._secret)  # noqa: SLF001 — of the same class
            lines.append(_PREVIOUS_FORM + b"%b:%d:%d" % (secret, one.ledger, one.calls))
        return b"\n".join(lines) + b"\n"


def read_private_file(path: str) -> bytes:
    """Read a small file with a secret, or raise `OSError`. It mustn't be readable by every user of the machine."""
    data = read_small_file(path, _FILE_BYTES)
    if stat.S_IMODE(os.stat(path).st_mode) & 0o007:
        raise PermissionError(f"{path!r} can be read by every user of this machine: chmod 600 it")
    return data


def read_key(path: str) -> ClusterKey:
    """Read a cluster's key file.

    Raises:
        OSError: It can't be read, or everyone on the machine can read it.
        SecretFault: It's a reference, and the secret can't be read.
        ValueError: It isn't a cluster key.
    """
    key = read_any_key(path)
    if isinstance(key, OfferKey):
        message = f"{path!r} is the key of the offering node {key.node!r}: use it with --offer-only"
        raise ValueError(message)  # noqa: TRY004 — the file's content is wrong, not the argument
    return key


def read_any_key(path: str) -> ClusterKey | OfferKey:
    """Read the key file of a cluster or an offering node. Raises like `read_key`."""
    from indusagi.interop.auth.secrets import reveal  # noqa: PLC0415 — with a cluster only

    data = reveal(path).encode() if isinstance(path, SecretText) else read_private_file(path)
    first, *others = data.strip().split(b"\n")
    try:
        if first.startswith(_OFFER_FORM):
            node, serial, secret = first.removeprefix(_OFFER_FORM).split(b":")
            return OfferKey(node.decode(), serial.decode(), _decode_secret(secret))
        if not first.startswith(_FORM):
            raise ValueError("it has another form")
        return ClusterKey(_decode_secret(first.removeprefix(_FORM)), [_parse_previous(line) for line in others])
    except ValueError as exc:
        raise ValueError(f"{path!r} is no key of a cluster") from exc


def _decode_secret(text: bytes) -> bytes:
    try:
        secret = base64.urlsafe_b64decode(text)
    except binascii.Error as exc:
        raise ValueError("it is no base64") from exc
    if len(secret) != _KEY_BYTES:
        raise ValueError("it has another length")
    return secret


def _parse_previous(line: bytes) -> PreviousKey:
    secret, ledger, calls = line.removeprefix(_PREVIOUS_FORM).split(b":")
    return PreviousKey(ClusterKey(_decode_secret(secret)), int(ledger), int(calls))


def create_key(path: str) -> ClusterKey:
    """Create a key in a new file that only this user can read. Raises like `write_new_key`."""
    key = ClusterKey(os.urandom(_KEY_BYTES))
    write_new_key(path, key)
    return key


def write_new_key(path: str, key: ClusterKey | OfferKey) -> None:
    """Write a key to a new file that only this user can read. Raises `OSError` if it exists, or can't be written."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        make_private_dir(folder)
    with os.fdopen(create_private_file(path), "wb") as file:
        file.write(key.encode())
        file.flush()
        os.fsync(file.fileno())


def write_key(path: str, key: ClusterKey | OfferKey) -> None:
    """Replace a key file with one that only this user can read. If that raises `OSError`, the old file stays."""
    replace_file(path, key.encode())


# -- seals between nodes ----------------------------------------------------------------------


_VERSION = 2
"""First byte of an envelope. Earlier versions of indus sent JSON."""
TAG_BYTES = 16
"""Overhead of a sealed value."""
_HEAD = struct.Struct("!cQ")
"""Kind and number of a channel message."""
HEAD_BYTES = _HEAD.size + TAG_BYTES
_WINDOW = 1_024
_MAX_SENDERS = 10_000


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
        """Derive a key for one purpose."""
        return _derive(self._secret, purpose)

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


@record
class Opened:
    """The content of an envelope, and its author's seal."""

    value: JsonObject
    seal: Seal


class SealRing:
    """This node's seal, and the seals of authors it can check."""

    def __init__(self, own: Seal, find_offer: Callable[[str, str], Awaitable[Seal | None]] | None = None) -> None:
        self.own = own
        self._find_offer = find_offer
        """Returns an offering node's seal, unless its key was revoked. An offering node can't check others."""

    async def _find(self, author: str, serial: str) -> Seal | None:
        if author in {"", self.own.author}:
            return self.own
        return None if self._find_offer is None else await self._find_offer(author, serial)

    async def counts(self, seal: Seal) -> bool:
        """Return whether an author's key is still valid."""
        return await self._find(seal.author, seal.serial) is not None

    async def open(self, place: str, data: bytes) -> Opened | None:
        """Open any author's envelope. `None` if it's forged, for another place, or its key was revoked."""
        if len(data) < 2 or data[0] != _VERSION:
            return None
        author, _, serial = data[2 : 2 + data[1]].decode("utf-8", "replace").partition(":")
        seal = await self._find(author, serial)
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
