"""Runs inside a session bus with gnome-keyring: a server whose secret is in the keyring, while that's locked."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace

import anyio
import pytest
import secretstorage
from anyio import to_thread
from secretstorage.util import DBusAddressWrapper, format_secret, open_session
from tests.support.opened import fleet_of
from tests.support.servers import honest
from tests.support.waiting import until

from indusagi.core.secrets import parse_secret_text
from indusagi.interop import EndpointPhase
from indusagi.interop.auth.secrets import SecretFault, SecretFiles

PASSWORD = b"secret"
_INTERFACE = "org.gnome.keyring.InternalUnsupportedGuiltRiddenInterface"


def lock() -> None:
    """Lock the keyring."""
    with closing(secretstorage.dbus_init()) as connection:
        secretstorage.Collection(connection).lock()


def unlock() -> None:
    """Unlock the keyring as a desktop does once the user has typed the password."""
    with closing(secretstorage.dbus_init()) as connection:
        collection = secretstorage.Collection(connection)
        secret = format_secret(open_session(connection), PASSWORD, "text/plain")
        service = DBusAddressWrapper("/org/freedesktop/secrets", _INTERFACE, connection)
        service.call("UnlockWithMasterPassword", "o(oayays)", collection.collection_path, secret)


async def main() -> None:
    """Store, lock, wait, unlock, start, and remove."""
    store = SecretFiles(environ={})
    assert await to_thread.run_sync(store.set, "github", "value-in-the-keyring") == "keyring"
    (row,) = store.list_rows().values()
    assert (row.vault, row.secret) == ("keyring", "")
    await to_thread.run_sync(lock)
    for ask in (store.read, store.remove):
        with pytest.raises(SecretFault, match="the keyring is locked; unlock it"):
            await to_thread.run_sync(ask, "github")
    assert not await to_thread.run_sync(store.unlock), "nobody can answer the question of the desktop here"
    async with fleet_of(replace(honest(), env={"TOKEN": parse_secret_text("${keyring:github}")})) as fleet:
        status = fleet.status()["honest"]
        assert status.phase is EndpointPhase.IDLE, status
        assert "the secret 'github' waits: the keyring is locked" in str(status.fault), status
        await to_thread.run_sync(unlock)
        await until(lambda: fleet.status()["honest"].phase is EndpointPhase.READY)
        endpoint = fleet.endpoint("honest")
        assert endpoint is not None
        result = await endpoint.invoke("env", {})
        assert isinstance(result.structured, dict)
        assert result.structured["TOKEN"] == "value-in-the-keyring"
    assert await to_thread.run_sync(store.remove, "github")
    assert not store.list_rows()


if __name__ == "__main__":
    sys.exit(anyio.run(main))
