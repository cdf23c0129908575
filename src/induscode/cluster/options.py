"""The options by which commands join a cluster: addresses of brokers, and the name of a node."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Sequence
from urllib.parse import urlsplit

from indusagi.core.app_dirs import read_small_file
from induscode.cluster.contract import NODE_NAME, hide_password

_SCHEMES = ("nats", "tls", "ws", "wss")
CREDENTIALS_VARIABLE = "INDUS_BROKER_CREDENTIALS"
"""The variable with the user and password for the brokers."""
_CREDENTIALS_BYTES = 65_536
PASSWORD_SHOWN = (
    "the address of the brokers has a password, which other users of this machine can read in the process list: "
    f"use --broker-credentials FILE, the setting cluster.credentials_file or the variable {CREDENTIALS_VARIABLE}"
)
"""What to say about a password on the command line."""


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


def has_password(addresses: Sequence[str]) -> bool:
    """Return whether an address names a user or a password."""
    return any(urlsplit(address).username for address in addresses)


def read_credentials(path: str | None) -> str:
    """Read what this process tells the brokers about itself, from a file or the variable; empty without both.

    Raises:
        OSError: The file can't be read, or everyone on the machine can read it.
        ValueError: It's empty, or isn't text.
    """
    if path is None:
        return os.environ.get(CREDENTIALS_VARIABLE, "").strip()
    path = os.path.expanduser(path)
    data = read_small_file(path, _CREDENTIALS_BYTES)
    if stat.S_IMODE(os.stat(path).st_mode) & 0o007:
        raise PermissionError(f"{path!r} can be read by every user of this machine: chmod 600 it")
    text = data.decode().strip()
    if not text:
        raise ValueError(f"{path!r} is empty: write USER:PASSWORD into it, a token, or NATS credentials")
    return text


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
