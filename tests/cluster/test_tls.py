"""How brokers are connected to: `tls://` never without TLS, and with one user for all addresses of a scheme."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.broker import KEY, BrokerProcess, broker_process, refused_connections
from tests.support.http_peer import self_signed
from tests.support.waiting import until

from induscode.cluster.broker import open_broker
from induscode.cluster.contract import ClusterFault, ClusterSettings, parse_brokers
from induscode.cluster.opening import prepare_cluster

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.process]


def settings_for(url: str) -> ClusterSettings:
    return ClusterSettings(brokers=[url], node="a", key=KEY, connect_s=20)


@pytest.fixture
def tls_broker(tmp_path: Path) -> Generator[tuple[BrokerProcess, Path]]:
    """A broker that requires TLS, and the certificate of its authority."""
    _, certificate = self_signed(tmp_path)
    flags = ("--tls", "--tlscert", str(certificate), "--tlskey", str(tmp_path / "key.pem"))
    with broker_process(tmp_path / "broker", flags) as process:
        yield process, certificate


async def test_broker_without_tls_is_refused_before_the_password_is_sent() -> None:
    received: list[bytes] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"auth_required":true}\r\n')
        received.append(await reader.read())
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        refusal = pytest.raises(ClusterFault, match="it offers no TLS, which its address tls:// requires")
        with refusal, refused_connections():
            async with open_broker(settings_for(f"tls://user:secret@127.0.0.1:{port}")):
                pass
        await until(lambda: bool(received))
    assert set(received) == {b""}


async def test_real_broker_without_tls_is_refused(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        with pytest.raises(ClusterFault, match="it offers no TLS"), refused_connections():
            async with open_broker(settings_for(broker.url.replace("nats://", "tls://"))):
                pass


@pytest.mark.parametrize("scheme", ["tls", "nats"])
async def test_broker_with_tls_is_used_with_the_certificate_of_its_authority(
    tls_broker: tuple[BrokerProcess, Path], monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    broker, certificate = tls_broker
    settings = settings_for(f"{scheme}://127.0.0.1:{broker.port}")
    refusal = pytest.raises(ClusterFault, match=r"its TLS certificate is not trusted .* SSL_CERT_FILE names")
    with refusal, refused_connections():
        async with open_broker(settings):
            pass
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with open_broker(settings) as opened:
        assert (await prepare_cluster(opened, replicas=1)).made


@pytest.mark.parametrize(
    ("flags", "user"), [(("--user", "red", "--pass", "a@b/c"), "red:a%40b%2Fc"), (("--auth", "a/b"), "a%2Fb")]
)
async def test_user_of_the_first_address_is_used_for_those_after_it(
    tmp_path: Path, flags: tuple[str, ...], user: str
) -> None:
    with broker_process(tmp_path, flags) as broker, socket.socket() as absent:
        absent.bind(("127.0.0.1", 0))
        addresses = f"nats://{user}@127.0.0.1:{absent.getsockname()[1]},127.0.0.1:{broker.port}"
        settings = replace(settings_for(""), brokers=parse_brokers(addresses))
        async with open_broker(settings) as opened:
            assert (await prepare_cluster(opened, replicas=1)).made
        # A password that was meant for TLS is not sent without it.
        mixed = addresses.replace("nats://", "tls://", 1).replace(",", ",nats://")
        with pytest.raises(ClusterFault, match="no broker can be used"), refused_connections(2):
            async with open_broker(replace(settings, brokers=parse_brokers(mixed))):
                pass
