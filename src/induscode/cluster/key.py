"""The key of a cluster: seals what rests at the broker, and proves who wrote it.

Whatever a broker stores for a cluster (ledgers, call records, shared servers, consents, rules) is encrypted and
authenticated with AES-256-GCM (NIST SP 800-38D) under keys derived from one secret file, with the name of the place
as associated data: an administrator or another user of the broker can neither read a value, nor write one, nor move one
to another place. The operator copies the file to every node; it never travels through the broker.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import stat
import zlib

from indusagi.core.app_dirs import create_private_file, make_private_dir, read_small_file, state_dir

KEY_FILE = "cluster.key"
"""The name of the file in the state directory."""
_FORM = b"indus-cluster-key-1:"
_KEY_BYTES = 32
_NONCE_BYTES = 12
_FILE_BYTES = 4_096
_VERSION = b"\x01"
LARGEST_BYTES = 64 * 1024 * 1024
"""The most that one sealed value may hold when it is open."""


class UnsealedError(ValueError):
    """A value was not sealed with this key for this place, or is damaged."""


class ClusterKey:
    """One secret, and the keys derived from it."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._sealing = self.derive("sealing")

    def derive(self, purpose: str) -> bytes:
        """Derive a key for one purpose (RFC 5869, the expansion of HKDF for 32 bytes)."""
        return hmac.digest(self._secret, b"indus cluster " + purpose.encode() + b"\x01", hashlib.sha256)

    def digest(self, purpose: str, text: str) -> str:
        """Digest a text so that only holders of the key can find out what it was."""
        return hmac.digest(self.derive(purpose), text.encode("utf-8", "surrogatepass"), hashlib.sha256).hex()

    def seal(self, place: str, data: bytes) -> bytes:
        """Compress, encrypt and authenticate a value for one place."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 — loads slowly

        nonce = os.urandom(_NONCE_BYTES)
        return _VERSION + nonce + AESGCM(self._sealing).encrypt(nonce, zlib.compress(data, 1), place.encode())

    def unseal(self, place: str, sealed: bytes) -> bytes:
        """Return the value that was sealed for this place.

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


def find_key_path(path: str | None = None) -> str:
    """Return the path of the key file: the chosen one, or `cluster.key` in the state directory.

    Raises:
        OSError: None was chosen, and there is no home directory.
    """
    return os.path.expanduser(path) if path else os.path.join(state_dir(), KEY_FILE)


def read_key(path: str) -> ClusterKey:
    """Read a key file.

    Raises:
        OSError: It cannot be read, or everyone on the machine can read it.
        ValueError: It is something else.
    """
    text = read_small_file(path, _FILE_BYTES).strip()
    if stat.S_IMODE(os.stat(path).st_mode) & 0o007:
        raise PermissionError(f"{path!r} can be read by every user of this machine: chmod 600 it")
    try:
        secret = base64.urlsafe_b64decode(text.removeprefix(_FORM))
    except (binascii.Error, ValueError) as exc:
        raise ValueError(f"{path!r} is no key of a cluster") from exc
    if not text.startswith(_FORM) or len(secret) != _KEY_BYTES:
        raise ValueError(f"{path!r} is no key of a cluster")
    return ClusterKey(secret)


def create_key(path: str) -> ClusterKey:
    """Make a key and write it to a new file that only this user can read.

    Raises:
        OSError: The file exists, or cannot be written.
    """
    if folder := os.path.dirname(os.path.abspath(path)):
        if not os.path.isdir(folder):
            make_private_dir(folder)
    secret = os.urandom(_KEY_BYTES)
    with os.fdopen(create_private_file(path), "wb") as file:
        file.write(_FORM + base64.urlsafe_b64encode(secret) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return ClusterKey(secret)
