"""References to secrets: what's replaced, where values come from, and that no text of ours quotes one."""

from __future__ import annotations

import copy
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

import pytest
from anyio import to_thread
from hypothesis import given
from hypothesis import strategies as st
from tests.support.credentials import MemoryKeyring
from tests.support.opened import QUICK, fault_of_opening, fleet_of, opened
from tests.support.servers import honest
from tests.support.waiting import until

from indusagi.core.secrets import (
    REFERENCE,
    SecretReference,
    SecretText,
    find_literal_host,
    hide_secrets,
    holds_secret,
    parse_secret_text,
)
from indusagi.interop import EndpointPhase, StdioServerConfig, StreamableHttpServerConfig
from indusagi.interop.auth import secrets
from indusagi.interop.auth.secrets import SecretFault, SecretFiles, read_secret, reveal
from indusagi.interop.auth.storage import KEY_VARIABLE, KeyringVault
from indusagi.interop.protocol_bridge.client.start import RestartRecord, reveal_config
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault
from indusagi.interop.protocol_bridge.redaction import Redaction
from indusagi.net.address import FetchError, parse_url

if TYPE_CHECKING:
    from collections.abc import Callable

VALUE = "correct/horse battery+staple"


def plain_store(tmp_path: Path) -> SecretFiles:
    return SecretFiles(str(tmp_path / "s"), environ={}, find_keyring=lambda: None)


def sealed_store(tmp_path: Path) -> SecretFiles:
    return SecretFiles(str(tmp_path / "s"), environ={KEY_VARIABLE: "a key of some length"}, find_keyring=lambda: None)


def keyring_store(tmp_path: Path) -> SecretFiles:
    ring = KeyringVault(MemoryKeyring())
    return SecretFiles(str(tmp_path / "s"), environ={}, find_keyring=lambda: ring)


# -- texts ------------------------------------------------------------------------------------


@given(st.text())
def test_a_text_without_references_is_unchanged(text: str) -> None:
    found = parse_secret_text(text)
    assert found == text
    assert isinstance(found, SecretText) is (re.search(REFERENCE, text) is not None)


@given(st.lists(st.sampled_from(["a", "${keyring:A}", "${file:/x}", "${X}", "$", "{", "}", "${keyring:", "é"])))
def test_a_text_with_references_reads_as_written_wherever_it_goes(parts: list[str]) -> None:
    text = parse_secret_text("".join(parts))
    copied: str = copy.deepcopy(text)
    assert text == "".join(parts) == copied
    assert getattr(copied, "parts", None) == getattr(text, "parts", None)


@given(st.text(min_size=1).filter(str.strip))
def test_a_reference_inside_a_value_is_not_replaced(value: str) -> None:
    def read(_: SecretReference) -> str:
        return value + "${keyring:B}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "_READERS", {"keyring": read})
        assert reveal(parse_secret_text("<${keyring:A}>")) == f"<{value}${{keyring:B}}>"


@pytest.mark.parametrize(
    "text", ["${file:-npx}", "${cmd:0:3}", "${keyring:?missing}", "${cmd:=x}", "$keyring:A", "${env:A}"]
)
def test_what_a_shell_would_replace_is_no_reference(text: str) -> None:
    assert not isinstance(parse_secret_text(text), SecretText)


# -- the store --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [plain_store, sealed_store, keyring_store])
def test_a_stored_secret_comes_back_and_its_file_is_private(
    make: Callable[[Path], SecretFiles], tmp_path: Path
) -> None:
    store = make(tmp_path)
    vault = store.set("github.token", VALUE)
    assert vault == make.__name__.partition("_")[0]
    assert make(tmp_path).read("github.token") == VALUE if vault != "keyring" else store.read("github.token") == VALUE
    assert list(store.list_rows()) == ["github.token"]
    (file,) = (tmp_path / "s").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert (VALUE in file.read_text("utf-8")) is (vault == "plain")
    assert store.remove("github.token")
    assert not store.remove("github.token")
    with pytest.raises(SecretFault, match=r"no secret 'github\.token' is stored: indus secrets set github\.token"):
        store.read("github.token")


@pytest.mark.parametrize("environ", [{}, {KEY_VARIABLE: "another key of some length"}])
def test_a_sealed_secret_says_which_key_it_needs(environ: dict[str, str], tmp_path: Path) -> None:
    sealed_store(tmp_path).set("a", VALUE)
    with pytest.raises(SecretFault, match=rf"the secret 'a' can't be opened: .*{KEY_VARIABLE}"):
        SecretFiles(str(tmp_path / "s"), environ=environ, find_keyring=lambda: None).read("a")


def test_a_file_of_another_secret_is_not_opened_in_its_place(tmp_path: Path) -> None:
    """Write access to the files must not be enough to send one server's secret to another."""
    store = sealed_store(tmp_path)
    for name in ("a", "b"):
        store.set(name, f"the value of {name}")
    rows = store.list_rows()
    Path(rows["a"].path).write_text(Path(rows["b"].path).read_text("utf-8").replace('"b"', '"a"'), "utf-8")
    with pytest.raises(SecretFault, match="damaged, or was sealed by another key"):
        store.read("a")


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "12", "x" * 65, "é", "a\n", "a}"])
def test_an_invalid_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SecretFault, match="not a valid name"):
        plain_store(tmp_path).set(name, VALUE)


@pytest.mark.parametrize("value", ["", "a\0b", "x" * 70_000])
def test_an_invalid_value_is_refused_without_repeating_it(value: str, tmp_path: Path) -> None:
    with pytest.raises(SecretFault) as caught:
        plain_store(tmp_path).set("a", value)
    assert len(str(caught.value)) < 100


def test_a_secret_in_a_file_replaces_the_one_in_the_keyring(tmp_path: Path) -> None:
    backend = MemoryKeyring()
    ring = KeyringVault(backend)
    store = SecretFiles(str(tmp_path / "s"), environ={}, find_keyring=lambda: ring)
    store.set("a", VALUE)
    assert store.set("a", "another value", keyring=False) == "plain"
    assert backend.passwords == {}
    assert store.read("a") == "another value"


def test_a_locked_keyring_is_told_at_once_where_nobody_can_unlock_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = keyring_store(tmp_path)
    store.set("a", VALUE)
    states = [True, True, True, False]

    def is_locked(_: KeyringVault) -> bool:
        return states.pop(0)

    monkeypatch.setattr(KeyringVault, "is_locked", is_locked)
    for ask in (lambda: store.read("a"), lambda: store.set("a", "x"), lambda: store.remove("a")):
        with pytest.raises(SecretFault, match="the keyring is locked; unlock it") as caught:
            ask()
        assert caught.value.is_locked
    assert store.read("a") == VALUE


# -- files and commands -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o700])
def test_a_file_that_others_can_use_is_refused_with_the_remedy(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(VALUE, "utf-8")
    path.chmod(mode)
    with pytest.raises(SecretFault, match=f"it has the mode {mode:04o}: chmod 600"):
        read_secret(SecretReference("file", str(path)))


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_file_loses_only_its_last_line_break(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("two\nlines\n\n", "utf-8")
    path.chmod(mode)
    assert read_secret(SecretReference("file", "token", str(tmp_path))) == "two\nlines\n"


def test_only_a_regular_file_with_a_text_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "empty").touch(0o600)
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "bytes").chmod(0o600)
    said = {"pipe": "not a regular file", "empty": "is empty", "bytes": "isn't text", ".": "not a regular file"}
    for name, reason in {**said, "none": "No such file"}.items():
        with pytest.raises(SecretFault, match=reason):
            read_secret(SecretReference("file", name, str(tmp_path)))


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("printf 'one\\ntwo\\n'", "one"),
        ("printf 'one\\r\\n'", "one"),
        (
            "printf -- '-----BEGIN KEY-----\\nabcd\\n-----END KEY-----\\n'",
            "-----BEGIN KEY-----\nabcd\n-----END KEY-----",
        ),
        ("echo $HOME", "$HOME"),
        ("sh -c 'echo value; echo more >&2'", "value"),
    ],
)
def test_the_first_line_of_a_command_is_its_value(line: str, value: str) -> None:
    assert read_secret(SecretReference("cmd", line)) == value


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sh -c 'echo s3cret-out; echo s3cret-err >&2; exit 3'", r"failed \(exit code 3\)"),
        ("true", "printed nothing"),
        ("no-such-program", "can't be started"),
        ("", "can't be started"),
        ("head -c 70000 /dev/zero", "printed more than 65,536 bytes"),
        ("sh -c 'echo $OPENAI_API_KEY$INDUS_CREDENTIALS_KEY'", "printed nothing"),
        ("echo '", "can't be started: No closing quotation"),
        ("echo ${A", "braces don't work"),
        ("sleep 60", "took longer than 0.2 s"),
    ],
)
def test_a_command_without_a_value_says_why_and_quotes_nothing(
    line: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.setenv(KEY_VARIABLE, "y")
    monkeypatch.setattr(secrets, "_COMMAND_S", 0.2 if line.startswith("sleep") else 30.0)
    with pytest.raises(SecretFault, match=said) as caught:
        read_secret(SecretReference("cmd", line))
    assert re.search("s3cret-(out|err)", str(caught.value).replace(line, "")) is None


# -- redaction --------------------------------------------------------------------------------


def test_a_value_that_was_read_is_hidden_in_every_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = 'a"b\nsecond-line-of-the-value\n&c='
    monkeypatch.setattr(secrets, "SecretFiles", lambda: plain_store(tmp_path))
    plain_store(tmp_path).set("a", value)
    assert reveal(parse_secret_text("${keyring:a}")) == value
    texts = [value, 'a\\"b\\nsecond-line-of-the-value\\n&c=', quote_plus(value), "second-line-of-the-value"]
    for text in texts:
        assert hide_secrets(f"<{text}>") == "<…>"
        assert holds_secret(text)
        assert Redaction().holds_secret(text)
        assert Redaction().hide(text) == Redaction().clean(text) == "…"


def test_a_reference_stays_readable_in_messages() -> None:
    config = replace(honest(), env={"API_TOKEN": parse_secret_text("${keyring:github}")})
    assert Redaction([config]).hide("no secret ${keyring:github} is stored") == "no secret ${keyring:github} is stored"


# -- servers ----------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.anyio
async def test_a_server_gets_the_value_and_its_configuration_keeps_the_reference(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(VALUE, "utf-8")
    path.chmod(0o600)
    written = f"<${{file:{path}}}>"
    config = replace(honest(), env={"TOKEN": parse_secret_text(written)})
    async with opened(config) as endpoint:
        result = await endpoint.invoke("env", {})
        assert isinstance(result.structured, dict)
        assert result.structured["TOKEN"] == f"<{VALUE}>"
        assert isinstance(endpoint.config, StdioServerConfig)
        assert endpoint.config.env == {"TOKEN": written}


@pytest.mark.process
@pytest.mark.anyio
async def test_a_server_without_its_secret_waits_and_starts_once_it_is_stored() -> None:
    config = replace(honest(), env={"TOKEN": parse_secret_text("${keyring:late}")})
    async with fleet_of(config) as fleet:
        status = fleet.status()["honest"]
        assert status.fault is not None
        assert (status.phase, status.fault.detail.reason) == (EndpointPhase.IDLE, "secret")
        assert "no secret 'late' is stored: indus secrets set late" in str(status.fault)
        await to_thread.run_sync(SecretFiles().set, "late", VALUE)
        await until(lambda: fleet.status()["honest"].phase is EndpointPhase.READY)


@pytest.mark.anyio
async def test_a_value_cannot_change_the_host_of_an_address(tmp_path: Path) -> None:
    for name, value in (("good", "pa%2Fss"), ("bad", "pa/ss")):
        (tmp_path / name).write_text(value, "utf-8")
        (tmp_path / name).chmod(0o600)
    url = "https://me:${file:%s}@mcp.example:8443/mcp?k=${file:%s}"
    good, bad = (
        StreamableHttpServerConfig("s", parse_secret_text(url % (name, name), str(tmp_path)))
        for name in ("good", "bad")
    )
    assert (await reveal_config(good)).url == "https://me:pa%2Fss@mcp.example:8443/mcp?k=pa%2Fss"
    failure = await fault_of_opening(bad)
    assert "percent-encode it" in str(failure)
    assert "pa/ss" not in str(failure)


@given(st.lists(st.sampled_from([*"@/\\?#:[]%.a\t\n。", "evil.example"])).map("".join), st.integers(0, 3))
def test_no_value_sends_a_request_to_another_origin(value: str, place: int) -> None:
    """A start refuses an address unless its literal host is the one of the row."""
    address = "https://u:{}@h.example:8443/p{}?k={}#f{}"
    written = address.format(*("${keyring:x}" if number == place else "a" for number in range(4)))
    url = address.format(*(value if number == place else "a" for number in range(4)))
    if find_literal_host(url) == find_literal_host(parse_secret_text(written)):
        with suppress(FetchError):
            assert parse_url(url, with_user=True).origin == "https://h.example:8443"


@pytest.mark.anyio
async def test_a_header_cannot_hold_a_value_with_line_breaks(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first-line-of-it\nX-Other: 1", "utf-8")
    (tmp_path / "token").chmod(0o600)
    headers = {"Authorization": parse_secret_text("Bearer ${file:token}", str(tmp_path))}
    failure = await fault_of_opening(StreamableHttpServerConfig("s", "http://127.0.0.1:1/mcp", headers))
    assert "its header 'Authorization' cannot be sent" in str(failure)
    assert "first-line" not in str(failure)


def test_a_missing_secret_never_opens_the_circuit() -> None:
    fault = ProtocolFault("spawn_failed", "no secret", detail=FaultDetail(reason="secret"))
    record = RestartRecord(QUICK)
    delays = [record.delay(fault, 0.0, float(now)) for now in range(30)]
    assert delays == sorted(delay for delay in delays if delay is not None)
    assert max(delay for delay in delays if delay is not None) <= 15
