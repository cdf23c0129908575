"""The cluster key: seals data in transit between nodes and at rest at the broker, and proves who wrote it.

All broker data of a cluster (ledgers, call records, shared servers, consents, rules) is encrypted and authenticated
with AES-256-GCM (NIST SP 800-38D) under keys derived from one secret file. The name of the place is the associated
data, so an administrator or another user of the broker can't read a value, write one, or move one to another place. The
operator copies the file to every node; it never travels through the broker.

The file holds the current key and its predecessors. A replaced key opens only messages of the ledgers and call records
up to the last one at that time. Anything sealed with it later isn't from a node.

A machine that only offers servers gets an offer key instead. It's derived from the cluster key, the node's name and a
serial, so every node can compute it, and its holder can compute nothing else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import stat
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field
from typing import Literal, TypeAlias

from indusagi.core.app_dirs import create_private_file, make_private_dir, read_small_file, replace_file, state_dir
from indusagi.core.records import record

KEY_FILE = "cluster.key"
"""File name in the state directory."""
SealedStream: TypeAlias = Literal["ledger", "calls"]
"""A stream whose messages stay sealed with the key of their time."""
_FORM = b"indus-cluster-key-1:"
_PREVIOUS_FORM = b"indus-cluster-previous-key-1:"
_OFFER_FORM = b"indus-cluster-offer-key-1:"
_MAX_PREVIOUS = 500
_KEY_BYTES = 32
_NONCE_BYTES = 12
_FILE_BYTES = 65_536
_VERSION = b"\x01"
LARGEST_BYTES = 64 * 1024 * 1024
"""Size limit of an unsealed value."""


class UnsealedError(ValueError):
    """The value wasn't sealed with this key for this place, or is damaged."""


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
        self._sealing = self.derive("sealing")

    def derive(self, purpose: str) -> bytes:
        """Derive a key for one purpose (HKDF-Expand to 32 bytes, RFC 5869)."""
        return hmac.digest(self._secret, b"indus cluster " + purpose.encode() + b"\x01", hashlib.sha256)

    def digest(self, purpose: str, text: str) -> str:
        """Digest a text so that only holders of the key can tell what it was."""
        return hmac.digest(self.derive(purpose), text.encode("utf-8", "surrogatepass"), hashlib.sha256).hex()

    def derive_offer(self, node: str, serial: str) -> OfferKey:
        """Derive the key of a node that only offers its servers."""
        return OfferKey(node, serial, self.derive(f"offer {node}:{serial}"))

    def seal(self, place: str, data: bytes) -> bytes:
        """Compress, encrypt and authenticate a value for one place."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 — loads slowly

        nonce = os.urandom(_NONCE_BYTES)
        return _VERSION + nonce + AESGCM(self._sealing).encrypt(nonce, zlib.compress(data, 1), place.encode())

    def unseal(self, place: str, sealed: bytes) -> bytes:
        """Return the value sealed for this place.

        Raises:
            UnsealedError: It was sealed with another key or for another place, or is damaged.
        """
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 — as in `seal`
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 — as in `seal`

        nonce, rest = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        if sealed[:1] != _VERSION:
            raise UnsealedError("it is not sealed")
        try:
            packed = AESGCM(self._sealing).decrypt(nonce, rest, place.encode())
            unpack = zlib.decompressobj()
            data = unpack.decompress(packed, LARGEST_BYTES)
        except (InvalidTag, ValueError, zlib.error) as exc:
            raise UnsealedError("it was not sealed with the key of this cluster for this place") from exc
        if unpack.unconsumed_tail:
            raise UnsealedError(f"it is larger than {LARGEST_BYTES:,} bytes")
        return data

    def unseal_message(self, stream: SealedStream, place: str, sealed: bytes, number: int) -> bytes:
        """Return the content of a stream message, which an earlier key of its time may have sealed.

        Raises:
            UnsealedError: As in `unseal`.
        """
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


def find_key_path(path: str | None = None) -> str:
    """Return the path of the key file: the chosen one, or `cluster.key` in the state directory.

    Raises:
        OSError: None was chosen, and there's no home directory.
    """
    return os.path.expanduser(path) if path else os.path.join(state_dir(), KEY_FILE)


def read_key(path: str) -> ClusterKey:
    """Read a cluster's key file.

    Raises:
        OSError: It can't be read, or everyone on the machine can read it.
        ValueError: It isn't a cluster key.
    """
    key = read_any_key(path)
    if isinstance(key, OfferKey):
        message = f"{path!r} is the key of the offering node {key.node!r}: use it with --offer-only"
        raise ValueError(message)  # noqa: TRY004 — the file's content is wrong, not the argument
    return key


def read_any_key(path: str) -> ClusterKey | OfferKey:
    """Read the key file of a cluster or an offering node. Raises like `read_key`."""
    text = read_small_file(path, _FILE_BYTES).strip()
    if stat.S_IMODE(os.stat(path).st_mode) & 0o007:
        raise PermissionError(f"{path!r} can be read by every user of this machine: chmod 600 it")
    first, *others = text.split(b"\n")
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
    """Write a key to a new file that only this user can read.

    Raises:
        OSError: The file exists, or can't be written.
    """
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        make_private_dir(folder)
    with os.fdopen(create_private_file(path), "wb") as file:
        file.write(key.encode())
        file.flush()
        os.fsync(file.fileno())


def write_key(path: str, key: ClusterKey | OfferKey) -> None:
    """Replace a key file with one that only this user can read.

    Raises:
        OSError: It can't be written; the old file stays.
    """
    replace_file(path, key.encode())
