from __future__ import annotations

import json
import os
import stat
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.credentials import ACCESS, KEY, REFRESH, MemoryKeyring, make_credentials, with_access

from indusagi.core.app_dirs import state_dir
from indusagi.interop.auth import storage
from indusagi.interop.auth.contract import AuthFault, CredentialKey
from indusagi.interop.auth.storage import (
    KEY_FILE,
    KEY_VARIABLE,
    CredentialFiles,
    KeyringVault,
    SealedVault,
    find_keyring,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SEALING_KEY = "correct horse battery staple"


def plain_store(tmp_path: Path) -> CredentialFiles:
    return CredentialFiles(str(tmp_path / "c"), environ={}, find_keyring=lambda: None)


def sealed_store(tmp_path: Path, key: str = SEALING_KEY) -> CredentialFiles:
    return CredentialFiles(str(tmp_path / "c"), environ={KEY_VARIABLE: key}, find_keyring=lambda: None)


def keyring_store(tmp_path: Path) -> CredentialFiles:
    ring = KeyringVault(MemoryKeyring())
    return CredentialFiles(str(tmp_path / "c"), environ={}, find_keyring=lambda: ring)


STORES = [plain_store, sealed_store, keyring_store]


def read_files(tmp_path: Path) -> str:
    return "".join(path.read_text("utf-8") for path in (tmp_path / "c").iterdir())


# -- every store ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", STORES)
async def test_a_stored_sign_in_comes_back_whole(make: Callable[[Path], CredentialFiles], tmp_path: Path) -> None:
    store, credentials = make(tmp_path), make_credentials()
    await store.save(credentials)
    assert await store.find(KEY) == credentials
    assert await store.load(KEY.resource) == credentials
    assert await store.list_credentials() == [credentials]


@pytest.mark.parametrize("make", STORES)
async def test_saving_replaces_the_sign_in_of_the_same_key(
    make: Callable[[Path], CredentialFiles], tmp_path: Path
) -> None:
    store = make(tmp_path)
    await store.save(make_credentials())
    await store.save(with_access(make_credentials(), "newer"))
    (credentials,) = await store.list_credentials()
    assert credentials.tokens is not None
    assert credentials.tokens.access_token == "newer"


@pytest.mark.parametrize("make", STORES)
async def test_a_deleted_sign_in_leaves_nothing(make: Callable[[Path], CredentialFiles], tmp_path: Path) -> None:
    store = make(tmp_path)
    await store.save(make_credentials())
    await store.delete(KEY)
    await store.delete(KEY)
    assert await store.find(KEY) is None
    assert list((tmp_path / "c").iterdir()) == []


@pytest.mark.parametrize("make", STORES)
async def test_files_are_private(make: Callable[[Path], CredentialFiles], tmp_path: Path) -> None:
    await make(tmp_path).save(make_credentials())
    (path,) = (tmp_path / "c").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700


async def test_the_last_saved_issuer_of_a_server_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10, 30, 20])
    monkeypatch.setattr(storage, "now_ms", lambda: next(times))
    store = plain_store(tmp_path)
    for issuer in ("https://a.example", "https://b.example", "https://c.example"):
        await store.save(make_credentials(replace(KEY, issuer=issuer)))
    found = await store.load(KEY.resource)
    assert found is not None
    assert found.key.issuer == "https://b.example"
    assert await store.load(KEY.resource, "another client") is None


async def test_sign_ins_are_in_the_state_directory(tmp_path: Path) -> None:
    store = CredentialFiles(environ={}, find_keyring=lambda: None)
    assert await store.list_credentials() == []
    await store.save(make_credentials())
    assert len(os.listdir(os.path.join(state_dir(), "credentials"))) == 1


@pytest.mark.parametrize("content", ["", "[]", "{", '{"version": 2}', '{"version": 1, "issuer": "i"}', "null"])
async def test_a_damaged_file_counts_as_absent(content: str, tmp_path: Path) -> None:
    store = plain_store(tmp_path)
    await store.save(make_credentials())
    (path,) = (tmp_path / "c").iterdir()
    path.write_text(content, "utf-8")
    assert await store.find(KEY) is None
    assert await store.load(KEY.resource) is None
    await store.save(make_credentials())
    assert await store.find(KEY) == make_credentials()


async def test_a_damaged_secret_counts_as_absent(tmp_path: Path) -> None:
    store = plain_store(tmp_path)
    await store.save(make_credentials())
    (path,) = (tmp_path / "c").iterdir()
    document = json.loads(path.read_text("utf-8"))
    for secret in ("", "{", json.dumps(make_credentials(CredentialKey("https://other.example", "r")).to_json())):
        path.write_text(json.dumps({**document, "secret": secret}), "utf-8")
        assert await store.find(KEY) is None
    path.write_text(json.dumps({**document, "vault": "elsewhere"}), "utf-8")
    assert await store.find(KEY) is None


async def test_temporary_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    store = plain_store(tmp_path)
    await store.save(make_credentials())
    (path,) = (tmp_path / "c").iterdir()
    left_over = path.with_name(f"{path.name}.0011223344556677.tmp")
    left_over.write_text(ACCESS, "utf-8")
    await store.save(make_credentials())
    assert list((tmp_path / "c").iterdir()) == [path]


async def test_a_store_that_cannot_be_written_names_the_server(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("a file", "utf-8")
    with pytest.raises(AuthFault, match=r"sign-in of https://server\.example/mcp cannot be stored") as caught:
        await plain_store(tmp_path).save(make_credentials())
    assert caught.value.is_transient


async def test_without_a_home_directory_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "relative")
    store = CredentialFiles(environ={}, find_keyring=lambda: None)
    assert store.read_rows() == ()
    with pytest.raises(AuthFault, match="cannot be stored: no home directory"):
        await store.save(make_credentials())


# -- secrets ----------------------------------------------------------------------------------


async def test_plain_text_leaves_one_note(tmp_path: Path) -> None:
    store = plain_store(tmp_path)
    await store.save(make_credentials())
    await store.save(make_credentials())
    (note,) = store.notes
    assert "plain text" in note.message
    assert KEY_VARIABLE in note.remedy
    assert ACCESS in read_files(tmp_path)
    (row,) = await anyio.to_thread.run_sync(store.read_rows)
    assert row.place.endswith("(plain text)")


async def test_neither_sealed_nor_keyring_files_hold_a_token(tmp_path: Path) -> None:
    for make, place in ((sealed_store, "(sealed)"), (keyring_store, "keyring")):
        store = make(tmp_path)
        await store.save(make_credentials())
        assert ACCESS not in read_files(tmp_path)
        assert REFRESH not in read_files(tmp_path)
        assert store.notes == []
        (row,) = await anyio.to_thread.run_sync(store.read_rows)
        assert row.place.endswith(place)
        assert ACCESS not in repr(row)


async def test_a_sealed_sign_in_needs_its_key(tmp_path: Path) -> None:
    await sealed_store(tmp_path).save(make_credentials())
    with pytest.raises(AuthFault, match="sealed by another key") as caught:
        await sealed_store(tmp_path, "another key of some length").find(KEY)
    assert not caught.value.is_transient
    with pytest.raises(AuthFault, match=f"is sealed: set {KEY_VARIABLE}"):
        await plain_store(tmp_path).find(KEY)
    assert await plain_store(tmp_path).list_credentials() == []


async def test_a_plain_sign_in_is_sealed_by_the_next_save(tmp_path: Path) -> None:
    await plain_store(tmp_path).save(make_credentials())
    store = sealed_store(tmp_path)
    assert await store.find(KEY) == make_credentials()
    await store.save(make_credentials())
    assert ACCESS not in read_files(tmp_path)


def test_a_sealed_text_opens_for_its_owner_alone() -> None:
    vault = SealedVault(SEALING_KEY.encode())
    text = vault.put("owner", "secret")
    assert vault.get("owner", text) == "secret"
    for owner, damaged in (("other", text), ("owner", text[:-8] + "AAAAAAA="), ("owner", "x" + text), ("owner", "x.y")):
        with pytest.raises(AuthFault, match="damaged, or was sealed by another key"):
            vault.get(owner, damaged)


def test_two_seals_of_one_secret_differ() -> None:
    vault = SealedVault(SEALING_KEY.encode())
    assert vault.put("owner", "secret") != vault.put("owner", "secret")


def test_the_key_may_be_a_credential_of_systemd(tmp_path: Path) -> None:
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert storage.find_sealing_key(environ) is None
    (tmp_path / KEY_FILE).write_text(f"{SEALING_KEY}\n", "utf-8")
    vault = storage.find_sealing_key(environ)
    assert vault is not None
    assert SealedVault(SEALING_KEY.encode()).get("o", vault.put("o", "secret")) == "secret"
    assert storage.find_sealing_key({"CREDENTIALS_DIRECTORY": "relative"}) is None


def test_an_unusable_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AuthFault, match=f"the key in {KEY_VARIABLE} has 5 bytes: give it 16 or more"):
        storage.find_sealing_key({KEY_VARIABLE: "short"})
    (tmp_path / KEY_FILE).mkdir()
    with pytest.raises(AuthFault, match=r"cannot be read"):
        storage.find_sealing_key({"CREDENTIALS_DIRECTORY": str(tmp_path)})


# -- the keyring ------------------------------------------------------------------------------


async def test_a_keyring_that_fails_is_replaced_by_a_file(tmp_path: Path) -> None:
    ring = MemoryKeyring()

    def refuse() -> None:
        raise RuntimeError("the collection is locked")

    vault = KeyringVault(ring)
    store = CredentialFiles(str(tmp_path / "c"), environ={}, find_keyring=lambda: vault)
    await store.save(make_credentials())
    ring.before = refuse
    with pytest.raises(
        AuthFault, match=r"cannot be opened: the keyring \(memory\) .* the collection is locked"
    ) as caught:
        await store.find(KEY)
    assert caught.value.is_transient
    await store.save(make_credentials())
    assert "the collection is locked" in store.notes[0].message
    assert await store.find(KEY) == make_credentials()
    with pytest.raises(AuthFault, match="locked"):
        vault.remove("owner")


async def test_a_keyring_that_is_absent_for_now_is_looked_for_again(tmp_path: Path) -> None:
    vault = KeyringVault(MemoryKeyring())
    await CredentialFiles(str(tmp_path / "c"), environ={}, find_keyring=lambda: vault).save(make_credentials())
    found: list[KeyringVault | None] = [None, vault]
    store = CredentialFiles(str(tmp_path / "c"), environ={}, find_keyring=lambda: found.pop(0))
    with pytest.raises(AuthFault, match="this process has none") as caught:
        await store.find(KEY)
    assert caught.value.is_transient
    for _ in range(2):
        assert await store.find(KEY) == make_credentials()


async def test_a_secret_that_moved_to_a_file_leaves_the_keyring(tmp_path: Path) -> None:
    ring = MemoryKeyring()
    store = CredentialFiles(str(tmp_path / "c"), environ={}, find_keyring=lambda: KeyringVault(ring))
    await store.save(make_credentials())
    assert len(ring.passwords) == 1
    # A second process whose keyring takes nothing at first.
    failures = iter([RuntimeError("locked for a moment")])

    def fail_once() -> None:
        for failure in failures:
            raise failure

    ring.before = fail_once
    await store.save(make_credentials())
    assert ring.passwords == {}
    assert await plain_store(tmp_path).find(KEY) == make_credentials()


async def test_a_sign_in_in_a_keyring_is_named_where_there_is_none(tmp_path: Path) -> None:
    await keyring_store(tmp_path).save(make_credentials())
    with pytest.raises(AuthFault, match=r"it is in a keyring, and this process has none"):
        await plain_store(tmp_path).find(KEY)
    with pytest.raises(AuthFault, match=r"it is in a keyring, and this process has none"):
        await plain_store(tmp_path).delete(KEY)


async def test_a_keyring_without_an_answer_has_a_deadline() -> None:
    ring, answer = MemoryKeyring(), threading.Event()
    ring.before = answer.wait
    with pytest.raises(AuthFault, match=r"no answer within 0\.01 s"):
        await anyio.to_thread.run_sync(KeyringVault(ring, wait_s=0.01).put, "owner", "secret")
    answer.set()
    for thread in threading.enumerate():
        if thread.name == "keyring":
            await anyio.to_thread.run_sync(thread.join)


def test_a_stand_in_backend_is_no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = pytest.importorskip("keyring")
    monkeypatch.setattr(keyring, "get_keyring", lambda: keyring.backends.fail.Keyring())
    assert find_keyring() is None
    monkeypatch.setattr(keyring, "get_keyring", MemoryKeyring)
    found = find_keyring()
    assert found is not None
    assert found.name == "memory"

    def fail() -> None:
        raise RuntimeError("no session bus")

    monkeypatch.setattr(keyring, "get_keyring", fail)
    assert find_keyring() is None


def test_without_the_package_there_is_no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "keyring", None)
    assert find_keyring() is None


# -- the lock ---------------------------------------------------------------------------------


async def test_one_refresh_at_a_time_for_each_sign_in(tmp_path: Path) -> None:
    first, second = plain_store(tmp_path), plain_store(tmp_path)
    order: list[str] = []
    entered, go_on = anyio.Event(), anyio.Event()

    async def refresh() -> None:
        async with first.lock(KEY):
            entered.set()
            await go_on.wait()
            order.append("first")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(refresh)
        await entered.wait()
        async with second.lock(replace(KEY, client="another")):  # another sign-in does not wait
            go_on.set()
        async with second.lock(KEY):
            order.append("second")
    assert order == ["first", "second"]


async def test_a_lock_held_too_long_is_a_passing_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "LOCK_WAIT_S", 0.01)
    faults: list[AuthFault] = []

    async def refresh() -> None:
        with pytest.raises(AuthFault, match="is being refreshed by another process") as caught:
            async with plain_store(tmp_path).lock(KEY):
                pass
        faults.append(caught.value)

    async with plain_store(tmp_path).lock(KEY), anyio.create_task_group() as tasks:
        tasks.start_soon(refresh)
    assert [fault.is_transient for fault in faults] == [True]
