"""`indus cluster`, and the flags of `indus serve` for nodes."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

import anyio
import pytest
from nats.errors import Error
from tests.commands.helpers import user_file
from tests.support.broker import KEY, BrokerProcess, broker_process
from tests.support.scripts import run as run_process
from tests.support.waiting import until

from induscode.cluster.broker import open_broker
from induscode.cluster.client import read_seed
from induscode.cluster.contract import ClusterFault, ClusterSettings, find_node_name, parse_brokers
from induscode.cluster.key import write_key
from induscode.cluster.membership import Membership, open_membership
from induscode.cluster.node import open_node
from induscode.cluster.opening import describe_fault, prepare_cluster
from induscode.commands import cluster_state
from induscode.commands.program import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nats.aio.msg import Msg


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--http", "--node", "a"], "--node requires --cluster"),
        (["--cluster", "nats://a"], "--cluster needs --http"),
        (["--http", "--cluster", "http://a"], "'http://a' is no address of a broker"),
        (["--http", "--cluster", "nats://a", "--node", "a b"], "--node 'a b': use letters"),
        (["--http", "--cluster", "nats://a", "--doors-only", "--offer-only"], "can't be used together"),
        (
            ["--http", "--cluster", "nats://a", "--transparent", "x"],
            "--cluster and --transparent can't be used together",
        ),
    ],
)
def test_flags_of_nodes_that_cannot_be_used_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_brokers_share_the_scheme_of_the_first() -> None:
    assert parse_brokers("tls://a, b:1,nats://c") == ["tls://a", "tls://b:1", "nats://c"]
    assert find_node_name("gw-1") == "gw-1"
    assert find_node_name(None)


def test_password_in_an_invalid_address_is_not_shown() -> None:
    for address in ("nats://user:secret@host:port", "nats://user:secret/x@host"):
        with pytest.raises(
            ValueError, match=r"'nats://host.*is no address of a broker, .* @ is written as %40"
        ) as caught:
            parse_brokers(address)
        assert "secret" not in str(caught.value)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "nats", None)
    assert run(["cluster", "status", "--cluster", "nats://127.0.0.1:1"]) == 1
    assert "pip install 'indus-deck[cluster]'" in capsys.readouterr().err
    assert run(["serve", "--http", "--cluster", "nats://127.0.0.1:1"]) == 2
    assert "pip install 'indus-deck[cluster]'" in capsys.readouterr().err


def test_brokers_are_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster"]) == 2
    assert "the setting cluster.brokers" in capsys.readouterr().err
    path = user_file().parents[1] / "indus" / "settings.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"cluster": {"brokers": ["http://a"]}}', encoding="utf-8")
    assert run(["cluster"]) == 2
    assert "the setting cluster.brokers: 'http://a' is no address of a broker" in capsys.readouterr().err


def test_rules_of_a_cluster_cannot_allow_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('{"deny": ["bash"], "allow": ["read"]}', encoding="utf-8")
    assert run(["cluster", "config", "rules", str(rules), "--cluster", "nats://127.0.0.1:1"]) == 2
    assert "the rules of a cluster only take away: leave 'allow' out of it" in capsys.readouterr().err


@pytest.mark.process
def test_cluster_is_prepared_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with broker_process(tmp_path) as broker:
        where = ["--cluster", broker.url]
        assert run(["cluster", "status", *where]) == 1
        assert "prepare it once with `indus cluster init`" in capsys.readouterr().err
        assert run(["cluster", "init", *where, "--lease", "2"]) == 0
        assert "sync_interval: always" in capsys.readouterr().out
        assert run(["cluster", "init", *where]) == 0
        assert "everything is there already" in capsys.readouterr().out
        assert run(["cluster", "status", *where, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["broker"], shown["lease_s"], shown["nodes"]) == ("ready", 2.0, [])
        assert run(["cluster", "placements", *where]) == 0
        assert "no server runs" in capsys.readouterr().out
        assert run(["cluster", "drain", "gone", *where]) == 1
        assert "there is no node 'gone'" in capsys.readouterr().err
        assert run(["cluster", "init", *where, "--replicas", "3"]) == 0
        assert "the first preparation counts: leases of 2 s, each entry on 1 broker\n" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.parametrize(
    ("flags", "settings", "arguments", "reason"),
    [
        ([], "", [], "brokers without JetStream: "),
        ([], "accounts { a: { users: [{user: u, password: p}] } }", [], "brokers without JetStream: "),
        (["-js"], "", ["--replicas", "3"], "there are fewer brokers than replicas: use --replicas 1"),
    ],
)
def test_brokers_that_cannot_be_prepared_say_why_and_leave_no_key(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    settings: str,
    arguments: list[str],
    reason: str,
) -> None:
    config, key = tmp_path / "nats.conf", tmp_path / "cluster.key"
    config.write_text(settings, encoding="utf-8")
    process = BrokerProcess(tmp_path / "broker", ["-c", str(config), *flags], is_storing=False)
    try:
        user = "u:p@" if settings else ""
        where = ["--cluster", process.url.replace("://", f"://{user}"), "--cluster-key", str(key)]
        assert run(["cluster", "init", *where, *arguments]) == 1
    finally:
        process.close()
    assert reason in capsys.readouterr().err
    assert not key.exists()


@pytest.mark.anyio
@pytest.mark.process
async def test_node_that_refuses_to_drain_is_named(tmp_path: Path) -> None:
    with broker_process(tmp_path) as process:
        settings = ClusterSettings(brokers=[process.url], node="a", key=KEY)
        async with open_broker(settings) as broker:
            await prepare_cluster(broker, replicas=1)
        async with open_broker(settings) as broker, open_membership(broker) as membership:

            async def refuse(message: Msg) -> None:
                await membership.requests.answer(message, {"answer": "no"})

            await asyncio.to_thread(write_key, str(tmp_path / "cluster.key"), KEY)
            stop = await broker.subscribe(settings.subject("node", membership.info.instance), refuse)
            async with asyncio.TaskGroup() as tasks:
                renewing = tasks.create_task(membership.run())
                command = [sys.executable, "-m", "induscode", "cluster", "drain", "a", "--cluster", process.url]
                command += ["--cluster-key", str(tmp_path / "cluster.key")]
                ended = await anyio.run_process(command, check=False)
                renewing.cancel()
            await stop()
    assert ended.returncode == 1
    assert b"node 'a' does not drain: it stops now" in ended.stderr


@pytest.mark.anyio
@pytest.mark.process
async def test_command_waits_for_the_report_of_a_busy_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with broker_process(tmp_path) as process:
        settings = ClusterSettings(brokers=[process.url], node="a", key=KEY)
        async with open_broker(settings) as broker:
            await prepare_cluster(broker, replicas=1)
            async with open_membership(broker) as busy:
                report, list_silent = busy.report, Membership.list_silent

                async def report_nothing(challenge: str = "") -> None:
                    pass

                async def list_and_report(membership: Membership) -> Sequence[str]:
                    silent = await list_silent(membership)
                    await report(membership._challenges[-1])
                    return silent

                busy.report = report_nothing
                monkeypatch.setattr(Membership, "list_silent", list_and_report)
                async with open_membership(broker, observer=True) as seen:
                    assert [info.node for info in seen.list_nodes()] == ["a"]


def test_fault_of_brokers_that_do_not_answer_has_the_reasons() -> None:
    text = describe_fault(ClusterFault("partitioned", "the entries could not be listed: no answer in time"))
    assert text.startswith("brokers partitioned: the entries could not be listed: no answer in time: they have no maj")
    assert describe_fault(ClusterFault("away", "no broker")) == "brokers away: no broker"
    assert describe_fault(ClusterFault("ready", "another key")) == "another key"


@pytest.mark.anyio
@pytest.mark.process
async def test_two_nodes_of_one_name_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after one that was stopped, and was replaced meanwhile, goes on."""

    async def wait_for_nothing(_: Membership) -> None:
        return

    monkeypatch.setattr(Membership, "wait_for_name", wait_for_nothing)
    with broker_process(tmp_path) as process:
        settings = ClusterSettings(brokers=[process.url], node="same", key=KEY)
        async with open_broker(settings) as broker:
            await prepare_cluster(broker, replicas=1)
        async with open_node(settings) as one:
            notes: list[str] = []
            one.on_note.add(notes.append)
            async with open_node(settings):
                await until(
                    lambda: "another node is named 'same' too: stop one of them (indus cluster status)" in notes
                )
                await asyncio.to_thread(write_key, str(tmp_path / "cluster.key"), KEY)
                where = ["--cluster", process.url, "--cluster-key", str(tmp_path / "cluster.key")]
                command = [sys.executable, "-m", "induscode", "cluster", *where]
                drain = await anyio.run_process([*command[:4], "drain", "same", *command[4:]], check=False)
                status = await anyio.run_process([*command[:4], "status", *command[4:]], check=False)
    assert (drain.returncode, status.returncode) == (1, 0)
    assert b"2 nodes are named 'same'" in drain.stderr
    assert b"2 nodes are named 'same': stop all but one" in status.stdout


def test_file_without_a_server_is_not_pushed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "servers.json"
    empty.write_text('{"mcpServers": {}}', encoding="utf-8")
    assert run(["cluster", "config", "push", str(empty), "--yes", "--cluster", "nats://127.0.0.1:1"]) == 2
    assert f"{empty}: there is no server in it" in capsys.readouterr().err


def test_yes_to_a_digest_pushes_exactly_what_was_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed = list[int]()

    def change(*_: object) -> int:
        pushed.append(1)
        return 0

    monkeypatch.setattr(cluster_state, "_change", change)
    file = tmp_path / "servers.json"
    file.write_text('{"mcpServers": {"one": {"url": "http://x"}, "two": {"command": "t"}}}', encoding="utf-8")
    push = ["cluster", "config", "push", str(file)]
    assert run(push) == 2
    shown = capsys.readouterr()
    digest = shown.out.rpartition("digest: ")[2].strip()
    assert f"--yes --digest {digest}" in shown.err
    for changed in ('{"url": "http://y"}', '{"url": "http://x", "headers": {"a": "b"}}'):
        before = file.read_text(encoding="utf-8")
        file.write_text(before.replace('{"url": "http://x"}', changed), encoding="utf-8")
        assert run([*push, "--yes", "--digest", digest]) == 1
        assert "it has changed since you looked" in capsys.readouterr().err
        file.write_text(before, encoding="utf-8")
    assert pushed == []
    assert run([*push, "--yes", "--digest", digest]) == 0
    assert pushed == [1]


@pytest.mark.process
def test_key_is_replaced_and_the_old_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, copy = tmp_path / "cluster.key", tmp_path / "old.key"
    with broker_process(tmp_path / "broker") as broker:
        where = ["--cluster", broker.url]
        assert run(["cluster", "init", *where, "--cluster-key", str(key)]) == 0
        shutil.copy(key, copy)
        assert run(["cluster", "rotate-key", *where, "--cluster-key", str(key)]) == 0
        assert "copy" in capsys.readouterr().out
        assert key.stat().st_mode & 0o777 == 0o600
        assert run(["cluster", "verify", *where, "--cluster-key", str(key)]) == 0
        for words in (["verify"], ["rotate-key"], ["config"]):
            assert run(["cluster", *words, *where, "--cluster-key", str(copy)]) == 1
        said = capsys.readouterr().err
        assert said.count("the key of the cluster was replaced (indus cluster rotate-key)") == 3


@pytest.mark.process
def test_key_behind_a_link_is_replaced_where_it_is(tmp_path: Path) -> None:
    key, link = tmp_path / "cluster.key", tmp_path / "link"
    with broker_process(tmp_path / "broker") as broker:
        where = ["--cluster", broker.url]
        assert run(["cluster", "init", *where, "--cluster-key", str(key)]) == 0
        link.symlink_to(key)
        assert run(["cluster", "rotate-key", *where, "--cluster-key", str(link)]) == 0
        assert link.is_symlink()
        assert run(["cluster", "verify", *where, "--cluster-key", str(key)]) == 0


@pytest.mark.process
def test_key_of_an_offering_node_is_issued_once_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "ada.key"
    with broker_process(tmp_path / "broker") as broker:
        where = ["--cluster", broker.url]
        assert run(["cluster", "offer-key", "ada", *where]) == 2
        assert "there is no key of the cluster at" in capsys.readouterr().err
        assert run(["cluster", "init", *where]) == 0
        assert run(["cluster", "offer-key", "ada", *where, "--out", str(key)]) == 0
        assert f"key of ada: {key}; copy it to that machine" in capsys.readouterr().out
        assert key.stat().st_mode & 0o777 == 0o600
        assert run(["cluster", "offer-key", "ada", *where, "--out", str(key)]) == 2
        assert "is there already" in capsys.readouterr().err
        assert run(["cluster", "offer-key", "a b", *where]) == 2
        assert run(["cluster", "offer-key", "ada", *where, "--out", "x", "--revoke"]) == 2
        for command in (["status"], ["verify"], ["drain", "x"]):
            assert run(["cluster", *command, *where, "--cluster-key", str(key)]) == 2
            assert "is the key of the offering node 'ada': use it with --offer-only" in capsys.readouterr().err
        offer = ["serve", "--offer-only", *where, "--cluster-key", str(key), "--no-mcp"]
        assert run([*offer, "--node", "bob"]) == 2
        assert f"--node 'bob': the key at {key} is that of 'ada'" in capsys.readouterr().err
        assert run(["cluster", "offer-key", "ada", *where, "--revoke"]) == 0
        assert run(["cluster", "offer-key", "bob", *where, "--revoke"]) == 1
        assert capsys.readouterr().out.endswith("the key of ada is revoked\nbob has no key\n")
        done = run_process(*offer, cwd=tmp_path)
    assert done.returncode == 1
    assert "the key of the offering node 'ada' was revoked or replaced" in done.stderr


def test_offering_node_without_a_key_is_told_how_to_get_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--offer-only", "--cluster", "nats://a", "--node", "ada"]) == 2
    assert "make one with `indus cluster offer-key ada` where the key of the cluster is" in capsys.readouterr().err


# -- who this process is for the brokers --------------------------------------------------------

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
"""The example of the documentation of NATS."""
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
PASSWORD = "pass:word-7c1"


@pytest.mark.process
@pytest.mark.parametrize("way", ["file", "variable", "setting", "nkey", "creds", "address"])
def test_finding_w3_the_password_of_the_brokers_comes_by_file_or_variable_and_is_never_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    config, file = tmp_path / "nats.conf", tmp_path / "login"
    users = f"{{user: gw, password: {json.dumps(PASSWORD)}}}, {{nkey: {PUBLIC}}}"
    config.write_text(f"authorization {{ users: [{users}] }}", encoding="utf-8")
    wrapped = f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
    file.write_text({"nkey": SEED, "creds": wrapped}.get(way, f"gw:{PASSWORD}\n"), encoding="utf-8")
    file.chmod(0o600)
    settings: dict[str, object] = {}
    with broker_process(tmp_path / "broker", ["-c", str(config)]) as broker:
        words = ["--cluster", broker.url]
        if way == "variable":
            monkeypatch.setenv("INDUS_BROKER_CREDENTIALS", f"gw:{PASSWORD}")
        elif way == "setting":
            settings["credentials_file"] = str(file)
        elif way == "address":
            address = broker.url.replace("://", f"://gw:{quote(PASSWORD)}@")
            words = ["--cluster", address]
            settings["brokers"] = [address]
        else:
            words += ["--broker-credentials", str(file)]
        path = user_file().parents[1] / "indus" / "settings.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"cluster": settings}), encoding="utf-8")
        assert run(["cluster", "init", *words]) == 0
        assert run(["cluster", "status", *words]) == 0
        assert run(["settings"]) == 0
        assert run(["settings", "show", "--json"]) == 0
    defaults = ClusterSettings.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "connect_s", 0.05)
    assert run(["cluster", "status", *words]) == 1  # nobody is there
    said = capsys.readouterr()
    assert not any(secret in said.out + said.err for secret in (PASSWORD, quote(PASSWORD), SEED))
    assert ("the address of the brokers has a password" in said.err) is (way == "address")


@pytest.mark.parametrize(("text", "mode", "message"), [("a:b", 0o604, "chmod 600 it"), (" ", 0o600, "is empty")])
def test_file_with_credentials_that_cannot_be_used_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, mode: int, message: str
) -> None:
    file = tmp_path / "login"
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)
    for command in (["cluster", "status"], ["serve", "--http"]):
        assert run([*command, "--cluster", "nats://127.0.0.1:1", "--broker-credentials", str(file)]) == 2
        assert message in capsys.readouterr().err
    assert run(["serve", "--http", "--broker-credentials", str(file)]) == 2
    assert "--broker-credentials requires --cluster" in capsys.readouterr().err


def test_seed_of_an_nkey_has_its_public_key_and_a_checksum() -> None:
    sign, public = read_seed(SEED)
    assert (public, len(sign(b"nonce"))) == (PUBLIC, 64)
    with pytest.raises(Error, match="damaged"):
        read_seed(SEED[:-1] + "A")


@pytest.mark.process
def test_limit_of_the_ledgers_that_cannot_be_set_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with broker_process(tmp_path) as broker:
        where = ["--cluster", broker.url]
        assert run(["cluster", "init", *where, "--ledger-limit", str(1 << 43)]) == 2
        assert "Invalid value for '--ledger-limit'" in capsys.readouterr().err
        assert run(["cluster", "init", *where, "--ledger-limit", "5"]) == 0
        assert "the ledgers take 5.0 MB at most" in capsys.readouterr().out
        assert run(["cluster", "init", *where, "--ledger-limit", "3"]) == 0
        assert "the ledgers keep their limit of 5.0 MB: it can only grow" in capsys.readouterr().out
        assert run(["cluster", "init", *where, "--ledger-limit", "5"]) == 0
        assert "keep their limit" not in capsys.readouterr().out
