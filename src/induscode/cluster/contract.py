"""Cluster types: settings, nodes, placements, faults, and the names of subjects and buckets."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from indusagi.core.faults import CoreError
from indusagi.core.json import JsonObject, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import SecretText, parse_secret_text
from induscode.cluster.key import ClusterKey, OfferKey, Seal, read_private_file

NodeRole: TypeAlias = Literal["all", "offers", "doors"]
"""A node serves clients and owns servers, only owns the servers it offers, or only serves clients."""
BrokerState: TypeAlias = Literal["ready", "away", "slow", "full", "partitioned", "without JetStream", "missing"]
"""The broker as this process sees it: it answers, isn't connected, answers late, has no storage left, has no majority,
has JetStream off, or lacks our buckets (`indus cluster init`)."""

NODE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
CAPACITY = 64
"""Default limit of servers per node."""
NODE_VARIABLE, EPOCH_VARIABLE = "INDUS_NODE", "INDUS_EPOCH"
"""Variables that give a server its owner and epoch. A storage that rejects epochs lower than the last one it saw is
safe from a server that outlives its owner."""
LEASE_S = 10.0
"""Lifetime of a node's lease without renewal."""


class ClusterFault(CoreError):
    """An error between this node and the brokers, or between two nodes. Everything that talks to them may raise it."""

    def __init__(self, state: BrokerState, message: str) -> None:
        super().__init__(message)
        self.state: BrokerState = state


class UnheardError(ClusterFault):
    """Nothing listens on the request's subject, so it hasn't arrived."""

    def __init__(self, message: str) -> None:
        super().__init__("ready", message)


class WrongKeyError(ClusterFault):
    """The cluster has a different key than this process."""

    def __init__(self, message: str) -> None:
        super().__init__("ready", message)


class LostRaceError(Exception):
    """Another writer changed the entry first. Not a broker error."""


def read_object(data: bytes) -> JsonObject:
    """Parse a JSON object, or return an empty one."""
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if is_json_object(value) else {}


def hide_password(address: str) -> str:
    """Return an address without its user and password."""
    scheme, mark, rest = address.rpartition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


@record(kw_only=True)
class ClusterSettings:
    """How a node joins a cluster."""

    brokers: Sequence[str]
    """Broker URLs: `nats://`, or `tls://` for TLS."""
    node: str
    role: NodeRole = "all"
    capacity: int = CAPACITY
    sandboxes: str = ""
    """What servers can run in on this machine, separated by blanks."""
    prefix: str = "indus"
    """First part of every subject and bucket name."""
    affinity: Mapping[str, str] = field(default_factory=dict[str, str])
    """Name patterns of preferred nodes, by server id."""
    idle_s: float = 0.0
    """Stop a server after this long without calls; 0 for never."""
    connect_s: float = 5.0
    """How long one broker may take to answer."""
    credentials: str = field(default="", repr=False)
    """Credentials for the brokers: `USER:PASSWORD`, a token, an nkey seed, or the text of a NATS credentials file.
    Empty to use the addresses."""
    key: ClusterKey | None = field(default=None, repr=False)
    """Seals data between nodes and at the broker."""
    offer: OfferKey | None = field(default=None, repr=False)
    """Used instead by a node that only offers its servers and shares nothing else."""

    @property
    def leases(self) -> str:
        """Bucket of leases."""
        return f"{self.prefix}_leases"

    @property
    def placements(self) -> str:
        """Bucket of placements."""
        return f"{self.prefix}_placements"

    @property
    def keys(self) -> str:
        """Bucket with the proof of the cluster key."""
        return f"{self.prefix}_keys"

    @property
    def ledger(self) -> str:
        """Stream of all ledgers."""
        return f"{self.prefix}_ledger"

    @property
    def shared(self) -> str:
        """Bucket of entries all nodes apply: servers, consents, approved definitions, rules."""
        return f"{self.prefix}_shared"

    @property
    def calls(self) -> str:
        """Stream of call records."""
        return f"{self.prefix}_calls"

    def subject(self, *parts: object) -> str:
        """Return a subject of this cluster: its prefix and these parts.

        | Parts | Who receives it |
        |---|---|
        | `beat` | all nodes: a node reports itself after each renewal |
        | `node`, INSTANCE | a node: requests of other nodes |
        | `reply`, INSTANCE, NUMBER | a node: the answer to its request |
        | `call`, KEY, EPOCH | a server's owner; subjects of earlier epochs are never used again |
        | `http`, INSTANCE | a node: HTTP requests for its sessions |
        | `inbox`, INSTANCE, CHANNEL | one end of a channel |
        | `ledger.chain`, CHAIN | the stream of ledgers: one ledger's rows |
        | `ledger.anchor` | the same stream: anchors over all chains |
        | `calls`, NODE | the stream of call records |
        """
        return ".".join((self.prefix, *map(str, parts)))


@record(kw_only=True)
class NodeInfo:
    """A node's report about itself."""

    node: str
    instance: str
    """Random name of the process."""
    lease: str = ""
    """Name of its current lease. A node that lost one continues under another."""
    role: NodeRole = "all"
    capacity: int = CAPACITY
    owned: int = 0
    """Servers it owns now."""
    sandboxes: str = ""
    """What servers can run in there: profiles, rules about hosts, engines of containers, separated by blanks."""
    url: str = ""
    """Address for clients, or empty."""
    draining: bool = False
    unpublished: int = 0
    """Ledger rows it hasn't published yet."""
    brokers: BrokerState = "ready"
    """The brokers as it sees them."""

    def may_own(self, only_node: str | None = None, sandbox: str = "") -> bool:
        """Return whether it may own a server: any with an equal row, or one that `only_node` offers.

        It must have the `sandbox` the server needs. A node of an earlier version reports none, and would ignore it.
        """
        is_meant = self.role == "all" if only_node is None else self.node == only_node
        return is_meant and not self.draining and (not sandbox or sandbox in self.sandboxes.split())

    def to_json(self) -> JsonObject:
        """Return it as a JSON object."""
        return asdict(self)

    @classmethod
    def parse(cls, value: object) -> NodeInfo | None:
        """Parse another node's report, or return `None`. A field of another type gets its default."""
        if not is_json_object(value):
            return None
        defaults = asdict(cls(node="", instance=""))
        known: dict[str, Any] = {
            name: value[name] for name, default in defaults.items() if type(value.get(name)) is type(default)
        }
        if not {"node", "instance"} <= known.keys() or known.get("role") not in get_args(NodeRole):
            return None
        if known.get("brokers") not in get_args(BrokerState):
            known["brokers"] = "ready"  # a state of a later version
        return cls(**known)


@record
class Placement:
    """Which node owns a server."""

    key: str
    server: str
    """The server's id in the configuration."""
    node: str
    lease: str
    """Lease of its owner. The placement ends with it."""
    epoch: int
    """Revision of the claim, greater than any earlier owner's."""
    revision: int = field(default=0, compare=False)
    """Current revision of the entry."""
    seal: Seal | None = field(default=None, compare=False, repr=False)
    """Author of the entry, who also seals the channels to the server."""


# -- options ----------------------------------------------------------------------------------


_SCHEMES = ("nats", "tls", "ws", "wss")
CREDENTIALS_VARIABLE = "INDUS_BROKER_CREDENTIALS"
"""Variable with the user and password for the brokers."""


def parse_brokers(text: str) -> Sequence[str]:
    """Split comma-separated addresses, or raise `ValueError`. Later ones may omit the scheme: `nats://a,b,c:4222`."""
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


def read_credentials(path: str | None) -> str:
    """Read this process's broker credentials from a file, a reference or the variable; empty without any.

    Raises:
        OSError: The file can't be read, or every user of the machine can read it.
        SecretFault: The secret it refers to can't be read.
        ValueError: It's empty, or isn't text.
    """
    from indusagi.interop.auth.secrets import reveal, reveal_variable  # noqa: PLC0415 — with a cluster only

    if path is None:
        return reveal_variable(CREDENTIALS_VARIABLE, os.environ)
    reference = parse_secret_text(path)
    is_file = not isinstance(reference, SecretText)
    text = read_private_file(os.path.expanduser(path)).decode().strip() if is_file else reveal(reference)
    if not text:
        raise ValueError(f"{path!r} is empty: write USER:PASSWORD into it, a token, or NATS credentials")
    return text


def find_node_name(name: str | None) -> str:
    """Return this node's name: the chosen one, or the machine's. Raises `ValueError` if the chosen one is invalid."""
    if name is not None:
        if NODE_NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r}: use letters, digits, _ and -, 64 at most")
        return name
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0])[:64] or "node"
