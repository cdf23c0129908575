"""Stores of the current user: one private file per sign-in or named secret, its value in the best available vault.

Files live in `…/indus/credentials/` and `…/indus/secrets/`, mode 0600 in 0700, named by a digest. A file is replaced
with rename(2) once its content is on disk, so readers and killed processes see the old value or the new one. A
sign-in's lock serialises refreshes across processes, and is released when its process ends.
"""

from __future__ import annotations

import base64
import collections
import errno
import glob
import hashlib
import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import field
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar, cast, get_args

import anyio
from anyio import to_thread

from indusagi.capabilities.files.atomic_write import file_lock
from indusagi.core.app_dirs import locked_directory, make_private_dir, read_small_file, replace_file, state_dir
from indusagi.core.faults import Note, describe_error
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.tasks import call_in_daemon_thread
from indusagi.core.time import now_ms
from indusagi.interop.auth.contract import AuthFault, CredentialKey, StoredCredentials, parse_credentials

# -- vaults ----------------------------------------------------------------------------------------
#
# In order of preference: the operating system's keyring (package `keyring`, extra `[keyring]`); text sealed with
# AES-256-GCM (NIST SP 800-38D) and a key from the environment or systemd; plain text. The caller stores the last two in
# a file of mode 0600: `put` returns the text for that file, `get` takes it. A sealed text is bound to its owner and
# can't be opened as another's. The methods block: call them in a thread.


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

    def is_locked(self, *, unlock: bool = False) -> bool:
        """Return whether the user has to unlock it first. With `unlock`, the desktop asks for that.

        Only a Secret Service says so (https://specifications.freedesktop.org/secret-service-spec/latest/).
        """
        backends = getattr(self._backend, "backends", None) or (self._backend,)
        if not any(type(one).__module__ == "keyring.backends.SecretService" for one in backends):
            return False

        def ask() -> bool:
            import secretstorage  # noqa: PLC0415 — the backend has loaded it

            with closing(secretstorage.dbus_init()) as connection:
                collection = secretstorage.Collection(connection)
                return collection.is_locked() and not (unlock and not collection.unlock())

        try:
            return self._call(ask)
        except AuthFault:  # it has no collection yet, isn't there any more, or nobody answered
            return unlock

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
        try:
            return call_in_daemon_thread("keyring", function, self._wait_s)
        except TimeoutError:
            cause = f"no answer within {self._wait_s:g} s; is it locked?"
        except Exception as exc:  # noqa: BLE001 — boundary: third-party backends
            cause = describe_error(exc)
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


_VERSION: Final = 1
_MAX_FILE_BYTES: Final = 1024 * 1024
LOCK_WAIT_S: Final = 90.0
"""How long a refresh waits for another process's refresh: longer than one request to the issuer may take."""


@record(kw_only=True)
class VaultRow:
    """One file of a store."""

    facts: JsonObject
    """Everything in it that's no secret."""
    owner: str
    """Name of the secret in its vault."""
    path: str
    vault: VaultKind
    saved_ms: int
    secret: str = field(repr=False)
    """Text for the vault: empty, sealed or plain."""

    @property
    def place(self) -> str:
        """Where the secret is, for display."""
        return {"keyring": "keyring", "sealed": f"{self.path} (sealed)", "plain": f"{self.path} (plain text)"}[
            self.vault
        ]


class VaultFiles:
    """Secrets of the current user in one directory: a private file for each. The methods block.

    Args:
        folder: Directory of the files; by default in the state directory.
        environ: Environment to look for the sealing key in.
        find_keyring: Finds the keyring; called until it does.
    """

    folder_name: ClassVar[str]
    """Name of the default directory."""
    items: ClassVar[str]
    """The contents of the store, for messages."""
    may_be_plain: ClassVar[bool] = True
    """Whether secrets may be stored as plain text."""

    def __init__(
        self,
        folder: str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        find_keyring: Callable[[], KeyringVault | None] = find_keyring,
    ) -> None:
        self.notes: list[Note] = []
        """Why secrets are stored in a worse place than the keyring, once per reason."""
        self._folder = folder
        self._environ = os.environ if environ is None else environ
        self._find_keyring = find_keyring
        self._keyring: KeyringVault | None = None

    def name_owner(self, facts: JsonObject) -> str | None:
        """Return the name that a secret with these facts has in its vault, or `None` if they're damaged."""
        raise NotImplementedError

    def read_files(self) -> Sequence[VaultRow]:
        """Read all files of the store without opening secrets, skipping damaged ones."""
        try:
            paths = sorted(glob.glob(os.path.join(glob.escape(self.find_folder()), "*.json")))
        except OSError:
            return ()
        return tuple(row for path in paths if (row := self.read_file(path)) is not None)

    def read_file(self, path: str) -> VaultRow | None:
        """Read one file without opening its secret, or return `None` if it's missing or damaged."""
        try:
            document = cast("JsonValue", json.loads(read_small_file(path, _MAX_FILE_BYTES, follow=False)))
        except (OSError, ValueError, RecursionError):
            return None
        if not is_json_object(document) or document.pop("version", None) != _VERSION:
            return None
        vault, secret, saved_ms = (document.pop(key, None) for key in ("vault", "secret", "saved_ms"))
        owner = self.name_owner(document)
        if owner is None or not isinstance(secret, str) or not isinstance(saved_ms, int):
            return None
        if vault not in get_args(VaultKind):
            return None
        kind = cast("VaultKind", vault)
        return VaultRow(facts=document, owner=owner, path=path, vault=kind, saved_ms=saved_ms, secret=secret)

    def write_file(self, path: str, facts: JsonObject, secret: str, *, keyring: bool = True) -> VaultKind:
        """Store a secret atomically and durably, and return its vault; `OSError` if its file can't be written.

        Without `keyring`, only in the file.
        """
        # No other process writes under this lock, so any temporary files come from killed processes.
        with locked_directory(make_private_dir(os.path.dirname(path))):
            for left_over in glob.glob(f"{glob.escape(path)}.*.tmp"):
                os.unlink(left_over)
            former, owner = self.read_file(path), self.name_owner(facts) or ""
            vault, text = self._put(owner, secret, keyring=keyring)
            document = {"version": _VERSION, **facts, "saved_ms": now_ms(), "vault": vault, "secret": text}
            replace_file(path, compact_json(document).encode("utf-8"))
            _sync_directory(os.path.dirname(path))
            if former is not None and former.vault == "keyring" and vault != "keyring":
                with suppress(AuthFault):  # the file replaces it, and it may be locked
                    self._require_keyring().remove(former.owner)
        return vault

    def remove_file(self, path: str) -> bool:
        """Remove a secret, then its file; return whether it existed. Raises `OSError` if the file can't be removed."""
        row = self.read_file(path)
        if row is not None and row.vault == "keyring":
            self._require_keyring().remove(row.owner)
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def read_secret(self, row: VaultRow) -> str | None:
        """Read a row's secret from its vault; raises `AuthFault` if that isn't available here."""
        if row.vault == "keyring":
            return self._require_keyring().get(row.owner, row.secret)
        if row.vault == "plain" and self.may_be_plain:
            return row.secret
        if self._sealed is None:
            raise AuthFault(f"{row.path} is sealed: set {KEY_VARIABLE} to the key")
        return self._sealed.get(row.owner, row.secret)

    def _put(self, owner: str, secret: str, *, keyring: bool) -> tuple[VaultKind, str]:
        """Put a secret into the first vault that takes it."""
        found = self.get_keyring() if keyring else None
        reason = "no keyring of the operating system can be used (pip install 'indus-deck[keyring]')"
        reason = reason if keyring else "it isn't in the keyring, as you chose"
        if found is not None:
            try:
                return "keyring", found.put(owner, secret)
            except AuthFault as exc:
                reason = str(exc)
        if self._sealed is not None:
            return "sealed", self._sealed.put(owner, secret)
        if not self.may_be_plain:
            raise AuthFault(f"{self.items} are stored sealed only, and {reason}: set {KEY_VARIABLE}", is_transient=True)
        note = Note(self.items, f"stored as plain text that only you can read; {reason}", f"or set {KEY_VARIABLE}")
        if note not in self.notes:
            self.notes.append(note)
        return "plain", secret

    def require_vault(self) -> None:
        """Raise `AuthFault` if secrets can only be stored as plain text."""
        if self.get_keyring() is None and self._sealed is None:
            remedy = f"set {KEY_VARIABLE} to a key (openssl rand -hex 32), or unlock a keyring"
            raise AuthFault(f"{self.items} are stored sealed only: {remedy}")

    def _require_keyring(self) -> KeyringVault:
        keyring = self.get_keyring()
        if keyring is None:
            raise AuthFault("it is in a keyring, and this process has none: pip install 'indus-deck[keyring]'")
        return keyring

    def get_keyring(self) -> KeyringVault | None:
        """Return the keyring, if there is one now."""
        if self._keyring is None:
            self._keyring = self._find_keyring()  # a session may unlock it or start its service later
        return self._keyring

    @cached_property
    def _sealed(self) -> SealedVault | None:
        return find_sealing_key(self._environ)

    def find_folder(self) -> str:
        """Return the directory of the files; `OSError` if there's no home directory."""
        return os.path.abspath(self._folder or os.path.join(state_dir(), self.folder_name))


# -- sign-ins --------------------------------------------------------------------------------------


@record
class StoredRow:
    """The file of one sign-in."""

    key: CredentialKey
    file: VaultRow = field(repr=False)

    @property
    def saved_ms(self) -> int:
        """When it was saved."""
        return self.file.saved_ms

    @property
    def place(self) -> str:
        """Where its tokens are, for display."""
        return self.file.place


class CredentialFiles(VaultFiles):
    """The `CredentialStore` of the current user."""

    folder_name = "credentials"
    items = "sign-ins"
    skips_unreadable = False
    """Whether to treat an unreadable sign-in as absent, while the user signs in again."""

    # -- CredentialStore --------------------------------------------------------------------

    async def load(self, resource: str, client: str = "") -> StoredCredentials | None:
        """Return the server's most recently saved sign-in, with any issuer."""

        def read() -> StoredCredentials | None:
            rows = [row for row in self.read_rows() if row.key.resource == resource and row.key.client == client]
            return self._open(max(rows, key=lambda row: row.saved_ms)) if rows else None

        return await to_thread.run_sync(read)

    async def find(self, key: CredentialKey) -> StoredCredentials | None:
        """Return the sign-in with exactly this key."""

        def read() -> StoredCredentials | None:
            file = self.read_file(self._path(key))
            return None if file is None or _parse_key(file.facts) != key else self._open(StoredRow(key, file))

        return await to_thread.run_sync(read)

    async def save(self, credentials: StoredCredentials) -> None:
        """Store a sign-in atomically and durably, replacing the one with the same key."""
        await to_thread.run_sync(self._save, credentials)

    async def delete(self, key: CredentialKey) -> None:
        """Remove a sign-in if it exists, secret first."""
        await to_thread.run_sync(self._delete, key)

    async def list_credentials(self) -> Sequence[StoredCredentials]:
        """List every sign-in that can be opened here."""

        def read() -> Sequence[StoredCredentials]:
            found: list[StoredCredentials] = []
            for row in self.read_rows():
                with suppress(AuthFault):  # `read_rows` still lists it
                    credentials = self._open(row)
                    found += [] if credentials is None else [credentials]
            return found

        return await to_thread.run_sync(read)

    @asynccontextmanager
    async def lock(self, key: CredentialKey) -> AsyncGenerator[None]:
        """Keep other tasks and processes from refreshing this sign-in."""
        path = await to_thread.run_sync(self._path, key)
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(file_lock(path, wait_s=LOCK_WAIT_S))
            except TimeoutError as exc:
                message = f"the sign-in of {key.resource} is being refreshed by another process: try again later"
                raise AuthFault(message, is_transient=True) from exc
            yield

    # -- files (blocking) -------------------------------------------------------------------

    def read_rows(self) -> Sequence[StoredRow]:
        """Read all files of the store without opening secrets, skipping damaged ones."""
        return tuple(StoredRow(key, file) for file in self.read_files() if (key := _parse_key(file.facts)) is not None)

    def name_owner(self, facts: JsonObject) -> str | None:
        """Return the server for readers, and the key for the store."""
        key = _parse_key(facts)
        return None if key is None else f"{key.resource} {_digest(key)}"

    def build_facts(self, key: CredentialKey) -> JsonObject:
        """Build the facts of a sign-in for its file."""
        return {"issuer": key.issuer, "resource": key.resource, "client": key.client}

    def _save(self, credentials: StoredCredentials) -> None:
        key = credentials.key
        try:
            self.write_file(self._path(key), self.build_facts(key), compact_json(credentials.to_json()))
        except OSError as exc:
            raise AuthFault(f"the sign-in of {key.resource} cannot be stored: {exc}", is_transient=True) from exc

    def _open(self, row: StoredRow) -> StoredCredentials | None:
        try:
            secret = self.read_secret(row.file)
        except AuthFault as exc:
            if self.skips_unreadable:
                return None
            message = f"the sign-in of {row.key.resource} is stored, and cannot be opened: {exc}"
            raise AuthFault(message, is_transient=row.file.vault == "keyring") from exc
        try:
            document = cast("JsonValue", json.loads(secret or ""))
        except (ValueError, RecursionError):
            return None
        credentials = parse_credentials(document)
        # Write access to the file must not be enough to send one server's tokens to another.
        return credentials if credentials is not None and credentials.key == row.key else None

    def _delete(self, key: CredentialKey) -> None:
        try:
            self.remove_file(self._path(key))
        except OSError as exc:
            raise AuthFault(f"the sign-in of {key.resource} cannot be removed: {exc}") from exc

    def _path(self, key: CredentialKey) -> str:
        try:
            return os.path.join(self.find_folder(), f"{_digest(key)}.json")
        except OSError as exc:
            raise AuthFault(f"sign-ins cannot be stored: {exc}") from exc


def _digest(key: CredentialKey) -> str:
    text = compact_json([key.issuer, key.resource, key.client])
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:32]


def _parse_key(facts: JsonObject) -> CredentialKey | None:
    texts = [text for name in ("issuer", "resource", "client") if isinstance(text := facts.get(name), str)]
    return CredentialKey(*texts) if len(texts) == 3 else None


def _sync_directory(folder: str) -> None:
    """Flush the rename to disk, so that a power failure can't bring an old refresh token back."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # some file systems can't
            raise
    finally:
        os.close(handle)


# -- in memory --------------------------------------------------------------------------------


_LOCK_S = 60.0


class MemoryCredentialStore:
    """In-memory `CredentialStore` of one process."""

    def __init__(self) -> None:
        self._rows: dict[CredentialKey, StoredCredentials] = {}
        self._locks: collections.defaultdict[CredentialKey, anyio.Lock] = collections.defaultdict(anyio.Lock)

    async def load(self, resource: str, client: str = "") -> StoredCredentials | None:
        """Return the server's most recently saved sign-in, with any issuer."""
        rows = reversed(self._rows.values())
        return next((row for row in rows if (row.key.resource, row.key.client) == (resource, client)), None)

    async def find(self, key: CredentialKey) -> StoredCredentials | None:
        """Return the sign-in with exactly this key."""
        return self._rows.get(key)

    async def save(self, credentials: StoredCredentials) -> None:
        """Store a sign-in, replacing the one with the same key."""
        self._rows.pop(credentials.key, None)
        self._rows[credentials.key] = credentials

    async def delete(self, key: CredentialKey) -> None:
        """Remove a sign-in."""
        self._rows.pop(key, None)

    async def list_credentials(self) -> Sequence[StoredCredentials]:
        """List every sign-in."""
        return (*self._rows.values(),)

    @asynccontextmanager
    async def lock(self, key: CredentialKey) -> AsyncGenerator[None]:
        """Keep other tasks from refreshing this sign-in."""
        lock = self._locks[key]
        try:
            with anyio.fail_after(_LOCK_S):
                await lock.acquire()
        except TimeoutError:
            message = f"{key.issuer}: another task has been refreshing its sign-in for {_LOCK_S:g} s"
            raise AuthFault(message, is_transient=True) from None
        try:
            yield
        finally:
            lock.release()
