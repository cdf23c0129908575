"""The options by which commands join a cluster: addresses of brokers, and the name of a node."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from induscode.cluster.contract import NODE_NAME, hide_password

_SCHEMES = ("nats", "tls", "ws", "wss")


def parse_brokers(text: str) -> Sequence[str]:
    """Split addresses that are separated by commas; later ones may leave the scheme out: `nats://a,b,c:4222`.

    Raises:
        ValueError: One of them is no address of a broker.
    """
    addresses: list[str] = []
    scheme = "nats"
    for part in text.split(","):
        address = part.strip()
        if "://" in address:
            scheme = address.partition("://")[0]
        else:
            address = f"{scheme}://{address}"
        try:
            parts = urlsplit(address)
            is_usable = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_usable = False
        if not is_usable:
            text = f"{hide_password(part.strip())!r} is no address of a broker, such as nats://broker.example:4222"
            raise ValueError(f"{text}; in a password, @ is written as %40, / as %2F" if "@" in part else text)
        addresses.append(address)
    return addresses


def find_node_name(name: str | None) -> str:
    """Return the name of this node: the one that was chosen, or that of the machine.

    Raises:
        ValueError: It has other characters, or is too long.
    """
    if name is not None:
        if NODE_NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r}: use letters, digits, _ and -, 64 at most")
        return name
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0])[:64] or "node"
