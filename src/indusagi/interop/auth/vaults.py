"""Vaults: where the secret of a stored sign-in is kept.

In order of preference: the operating system's keyring (package `keyring`, extra `[keyring]`); text sealed with
AES-256-GCM (NIST SP 800-38D) and a key from the environment or systemd; plain text. The caller stores the last two in
a file of mode 0600: `put` returns the text for that file, `get` takes it. A sealed text is bound to its owner and can't
be opened as another's. The methods block: call them in a thread.
"""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from indusagi.core.app_dirs import read_small_file
from indusagi.core.faults import describe_error
from indusagi.interop.auth.contract import AuthFault

T = TypeVar("T")

VaultKind: TypeAlias = Literal["keyring", "sealed", "plain"]
KEY_VARIABLE: Final = "INDUS_CREDENTIALS_KEY"
KEY_FILE: Final = "indus-credentials-key"
"""Name of the key in `$CREDENTIALS_DIRECTORY` (https://systemd.io/CREDENTIALS/)."""
KEYRING_SERVICE: Final = "indus"
_MIN_KEY_BYTES = 16
_MAX_KEY_BYTES = 64 * 1024
_KEYRING_WAIT_S = 60.0
"""How long a keyring may take: it may ask the user to unlock it."""
_MIN_PRIORITY = 1
"""Backends below this are placeholders and plain text files (https://keyring.readthedocs.io/en/latest/)."""
_FORM = "scrypt-aes256gcm"
_SCRYPT_COST = 2**14


class SealedVault:
    """Keeps the secret in the file, sealed with a key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._salt = os.urandom(16)
        self._derived: dict[bytes, bytes] = {}

    def put(self, owner: str, secret: str) -> str:
        """Return the sealed secret."""
        # Late import: only needed for sealed sign-ins.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        salt, nonce = self._salt, os.urandom(12)
        sealed = AESGCM(self._derive(salt)).encrypt(nonce, secret.encode("utf-8"), owner.encode("utf-8"))
        return ".".join([_FORM, *(base64.urlsafe_b64encode(part).decode() for part in (salt, nonce, sealed))])

    def get(self, owner: str, text: str) -> str | None:
        """Return the opened secret.

        Raises `AuthFault` if it was sealed with another key or for another owner, or is damaged.
        """
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 — as in `put`
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 — as in `put`

        form, _, rest = text.partition(".")
        try:
            salt, nonce, sealed = (base64.urlsafe_b64decode(part) for part in rest.split("."))
            if form != _FORM:
                raise ValueError(form)
            return AESGCM(self._derive(salt)).decrypt(nonce, sealed, owner.encode("utf-8")).decode("utf-8")
        except (InvalidTag, ValueError) as exc:
            message = f"it is damaged, or was sealed by another key than the one in {KEY_VARIABLE} or {KEY_FILE}"
            raise AuthFault(message) from exc

    def _derive(self, salt: bytes) -> bytes:
        # The user may have typed the key: scrypt (RFC 7914) makes guessing expensive.
        derived = self._derived.get(salt)
        if derived is None:
            derived = hashlib.scrypt(self._key, salt=salt, n=_SCRYPT_COST, r=8, p=1, dklen=32)
            self._derived[salt] = derived
        return derived


class KeyringVault:
    """Keeps the secret in the operating system's keyring, and nothing in the file."""

    def __init__(self, backend: Any, wait_s: float = _KEYRING_WAIT_S) -> None:
        # Any: the package is optional.
        self._backend = backend
        self._wait_s = wait_s

    @property
    def name(self) -> str:
        """Name of the backend."""
        return str(self._backend.name)

    def put(self, owner: str, secret: str) -> str:
        """Store the secret in the keyring and return an empty text."""
        self._call(lambda: self._backend.set_password(KEYRING_SERVICE, owner, secret))
        return ""

    def get(self, owner: str, text: str) -> str | None:
        """Read the secret from the keyring."""
        return cast("str | None", self._call(lambda: self._backend.get_password(KEYRING_SERVICE, owner)))

    def remove(self, owner: str) -> None:
        """Remove the secret from the keyring."""
        if self.get(owner, "") is not None:
            self._call(lambda: self._backend.delete_password(KEYRING_SERVICE, owner))

    def _call(self, function: Callable[[], T]) -> T:
        """Call the backend in a daemon thread, so that a keyring waiting for the user can't block our exit.

        Raises `AuthFault` if it failed, or took too long.
        """
        results: list[T] = []
        failures: list[Exception] = []

        def run() -> None:
            try:
                results.append(function())
            except Exception as exc:  # noqa: BLE001 — boundary: third-party backends
                failures.append(exc)

        thread = threading.Thread(target=run, name="keyring", daemon=True)
        thread.start()
        thread.join(self._wait_s)
        if results:
            return results[0]
        cause = describe_error(failures[0]) if failures else f"no answer within {self._wait_s:g} s; is it locked?"
        raise AuthFault(f"the keyring ({self.name}) cannot be used: {cause}", is_transient=True)


def find_keyring() -> KeyringVault | None:
    """Find the operating system's keyring; None without the package or a trustworthy backend."""
    try:
        import keyring  # noqa: PLC0415 — an extra, and slow to load

        backend = keyring.get_keyring()
        return KeyringVault(backend) if float(backend.priority) >= _MIN_PRIORITY else None
    except ImportError:
        return None
    except Exception:  # noqa: BLE001 — boundary: a backend that fails even to load
        return None


def find_sealing_key(environ: Mapping[str, str]) -> SealedVault | None:
    """Find the key that seals sign-ins: a variable, or a credential of a systemd service.

    Raises `AuthFault` if it's too short, or can't be read.
    """
    key, source = environ.get(KEY_VARIABLE, "").encode("utf-8"), KEY_VARIABLE
    folder = environ.get("CREDENTIALS_DIRECTORY", "")
    if not key and os.path.isabs(folder):
        source = os.path.join(folder, KEY_FILE)
        try:
            key = read_small_file(source, _MAX_KEY_BYTES).strip()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise AuthFault(f"the key {source} cannot be read: {exc.strerror or exc}") from exc
    elif not key:
        return None
    if len(key) < _MIN_KEY_BYTES:
        raise AuthFault(f"the key in {source} has {len(key)} bytes: give it {_MIN_KEY_BYTES} or more")
    return SealedVault(key)
