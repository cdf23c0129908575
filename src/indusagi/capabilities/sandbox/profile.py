"""Sandbox profiles of servers: what one server may read, write and reach.

`standard` keeps a server away from your home, credentials and local sockets, and leaves it the network. `strict` only
shows it the system's programs, its own package and a read-only workspace, without a network. Both refine by paths and
hosts. Every server gets a home of its own, so what it stores stays, and caches of other servers are out of reach.
"""

from __future__ import annotations

import os
import re
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from indusagi.core.app_dirs import state_dir
from indusagi.core.json import content_hash, is_json_object
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.capabilities.sandbox.behaviour import Behaviour
    from indusagi.capabilities.sandbox.trace import SandboxObserver
    from indusagi.core.json import JsonObject, JsonValue

ProfileName: TypeAlias = Literal["standard", "strict"]
Engine: TypeAlias = Literal["docker", "podman"]
PROFILES: Final[tuple[ProfileName, ...]] = ("standard", "strict")
ANY_HOST = "*"
_HTTPS = 443
_MAX_PORT = 65_535
_HOST = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_])?|\[[0-9a-f:.]+\]", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}", re.ASCII)
_IMAGE = re.compile(r"[a-z0-9][\w./-]*(?::[0-9]+/[\w./-]+)?(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?", re.ASCII)
_KEYS = frozenset({"profile", "read", "write", "hosts", "env", "limits"})
_CONTAINER_KEYS = frozenset({"container", "image", "allow_tag", "read", "write", "network", "env", "limits"})
ENGINES: Final[tuple[Engine, ...]] = ("docker", "podman")
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"([1-9]\d{0,8})([KMG])(?:i?B)?", re.ASCII)
_MIN_PROCESSES = 16
_MAX_PROCESSES = 1 << 20


class InvalidProfileError(ValueError):
    """A `sandbox` value that can't be used."""


@record(kw_only=True)
class ResourceLimits:
    """What one server may use, with everything it starts."""

    memory: int = 4 << 30
    """Bytes of its processes. Memory they share counts once."""
    processes: int = 2048
    """Processes and threads: a browser has hundreds."""
    disk: int = 8 << 30
    """Bytes in its home and its temporary directory, and of one file anywhere."""

    def describe(self) -> str:
        """Describe the limits that aren't the default, or return an empty string."""
        return ", ".join(f"{value} {name}" for name, value in format_limits(self).items())


def parse_limits(value: JsonValue) -> ResourceLimits:
    """Parse the `limits` of a profile. Raises `ValueError`."""
    if not is_json_object(value):
        raise ValueError('the limits must be an object such as {"memory": "2G"}')
    given: dict[str, int] = {}
    for name, limit in value.items():
        if name not in {"memory", "processes", "disk"}:
            raise ValueError(f"there is no limit of {name!r}; there are memory, processes, disk")
        if name == "processes":
            if not isinstance(limit, int) or not _MIN_PROCESSES <= limit <= _MAX_PROCESSES:
                raise ValueError(f"the limit of processes must be a number from {_MIN_PROCESSES}")
            given[name] = int(limit)
            continue
        size = _SIZE.fullmatch(limit) if isinstance(limit, str) else None
        if size is None:
            raise ValueError(f'the limit of {name} must be a size such as "512M" or "2G"')
        given[name] = int(size[1]) * _UNITS[size[2]]
    return ResourceLimits(**given)


def format_limits(limits: ResourceLimits) -> JsonObject:
    """Format the limits that aren't the default, as `limits` of a profile."""
    default = ResourceLimits()
    sizes = {"memory": format_size(limits.memory), "disk": format_size(limits.disk)}
    given: JsonObject = {"memory": sizes["memory"], "processes": limits.processes, "disk": sizes["disk"]}
    return {name: value for name, value in given.items() if getattr(limits, name) != getattr(default, name)}


def format_size(size: int) -> str:
    """Format a size the way a row writes it."""
    unit = next(name for name in "GMK" if size % _UNITS[name] == 0)
    return f"{size // _UNITS[unit]}{unit}"


@record
class Container:
    """The container a server runs in, instead of a sandbox on this machine."""

    engine: Engine
    image: str
    allows_tag: bool = False
    """Whether the image may be named without a digest. The tag can then move to another image."""


@record(kw_only=True)
class ServerProfile:
    """What one server may touch."""

    name: ProfileName = "standard"
    container: Container | None = None
    """In a container, `name` doesn't count: it only sees the image and `read`, `write` and `env`."""
    read: tuple[str, ...] = ()
    """Further paths it may read."""
    write: tuple[str, ...] = ()
    """Further paths it may read and write."""
    hosts: tuple[str, ...] | None = None
    """`host:port` it may reach. `None`: any host for `standard`, none for `strict`."""
    env: tuple[str, ...] = ()
    """Variables it inherits in addition to the profile's."""
    limits: ResourceLimits = ResourceLimits()
    owner: str = ""
    """The file with its row: servers of the same name in two files have two homes."""
    observer: SandboxObserver | None = field(default=None, compare=False, repr=False)
    """Records what it does. It then reaches every public host, through the proxy."""
    home: str = ""
    """Its private home. Without one, it's in our state directory, and lasts."""

    @property
    def is_strict(self) -> bool:
        """Whether only the system, its package and the workspace are visible."""
        return self.name == "strict"

    @property
    def title(self) -> str:
        """The name of the profile, or the engine of the container."""
        return self.name if self.container is None else self.container.engine

    @property
    def needs(self) -> str:
        """Which of `list_server_sandboxes` a machine must have for it."""
        if self.container is not None:
            return self.container.engine
        return "hosts" if self.hosts is not None and not self.reaches_all else self.name

    @property
    def reaches_all(self) -> bool:
        """Whether it shares the network of this machine."""
        if self.observer is not None:
            return False
        return ANY_HOST in self.hosts if self.hosts is not None else not self.is_strict

    @property
    def needs_proxy(self) -> bool:
        """Whether it has the egress proxy: it names hosts, or `[]`, so that a host it asks for later is noticed."""
        return (self.hosts is not None and not self.reaches_all) or self.observer is not None

    def allows_host(self, host: str, port: int) -> bool:
        """Return whether it may reach a port of a host, by name."""
        host = host.lower().rstrip(".")
        for pattern in self.hosts or ():
            name, _, allowed = pattern.rpartition(":")
            is_match = host.endswith(name[1:]) if name.startswith("*.") else host == name.strip("[]")
            if is_match and allowed == str(port):
                return True
        return False

    def allow(self, behaviour: Behaviour) -> ServerProfile:
        """Return this profile with everything a behaviour used, and no other host."""
        hosts = self.hosts or ()
        if ANY_HOST not in hosts:
            hosts = tuple(dict.fromkeys((*hosts, *behaviour.hosts)))
        write = tuple(dict.fromkeys((*self.write, *behaviour.write)))
        read = tuple(path for path in dict.fromkeys((*self.read, *behaviour.read)) if path not in write)
        return replace(self, read=read, write=write, hosts=hosts)

    def describe(self) -> str:
        """Describe in one line what the server may touch."""
        if self.container is not None:
            tagged = "" if "@" in self.container.image else ", whose tag can move to another image"
            parts = [f"runs in {self.container.image}{tagged}"]
        elif self.is_strict:
            parts = ["reads system programs, its own package and the workspace", "writes to a home of its own"]
        else:
            parts = [
                "reads the system and the workspace, not your home",
                "writes to the workspace and a home of its own",
            ]
        if self.read:
            parts.append(f"also reads {', '.join(self.read)}")
        if self.write:
            parts.append(f"also writes {', '.join(self.write)}")
        if self.env:
            parts.append(f"inherits {', '.join(self.env)}")
        if self.reaches_all:
            parts.append("reaches any host")
        else:
            parts.append(f"reaches {', '.join(self.hosts)}" if self.hosts else "no network")
        if self.limits != ResourceLimits():
            parts.append(f"uses at most {self.limits.describe()}")
        return f"{self.title}: {'; '.join(parts)}"


def parse_profile(value: JsonValue) -> ServerProfile | None:
    """Parse the `sandbox` of a row: `"off"`, a profile's name, or an object that refines one.

    Raises:
        InvalidProfileError: It's anything else. Guessing could give the server more than you wanted.
    """
    if value is None or value == "off":
        return None
    if isinstance(value, str):
        return ServerProfile(name=_parse_name(value))
    if not is_json_object(value):
        raise InvalidProfileError('its sandbox must be "off", "standard", "strict" or an object')
    keys = _CONTAINER_KEYS if "container" in value else _KEYS
    unknown = sorted(value.keys() - keys)
    if unknown:
        raise InvalidProfileError(f"its sandbox has an unknown key {unknown[0]!r}; there are {', '.join(sorted(keys))}")
    hosts, env = _parse_texts(value, "hosts"), _parse_texts(value, "env") or ()
    for name in env:
        if _VARIABLE.fullmatch(name) is None:
            raise InvalidProfileError(f"its sandbox names no variable: {name!r}")
    try:
        limits = parse_limits(value.get("limits", {}))
    except ValueError as exc:
        raise InvalidProfileError(f"in its sandbox, {exc}") from None
    container = _parse_container(value) if "container" in value else None
    if container is not None:
        hosts = _parse_network(value.get("network", "none"))
    return ServerProfile(
        name=_parse_name(value.get("profile", "standard")),
        container=container,
        read=_parse_texts(value, "read") or (),
        write=_parse_texts(value, "write") or (),
        hosts=None if hosts is None else tuple(map(parse_host, hosts)),
        env=env,
        limits=limits,
    )


def format_profile(profile: ServerProfile | None) -> JsonValue:
    """Format a profile as the `sandbox` of a row."""
    if profile is None:
        return "off"
    lists: Mapping[str, Sequence[str] | None] = {
        "read": profile.read,
        "write": profile.write,
        "hosts": profile.hosts,
        "env": profile.env,
    }
    given: JsonObject = {
        key: [*texts] for key, texts in lists.items() if texts is not None and (texts or key == "hosts")
    }
    if limits := format_limits(profile.limits):
        given["limits"] = limits
    if container := profile.container:
        del given["hosts"]
        tag: JsonObject = {"allow_tag": True} if container.allows_tag else {}
        network = "any" if profile.reaches_all else "none"
        return {"container": container.engine, "image": container.image, **tag, "network": network, **given}
    return {"profile": profile.name, **given} if given else profile.name


def _parse_container(value: JsonObject) -> Container:
    engine, image, allows_tag = value["container"], value.get("image"), value.get("allow_tag", False)
    if engine not in ENGINES:
        raise InvalidProfileError(f"the container of its sandbox must be {' or '.join(ENGINES)}, not {engine!r}")
    if not isinstance(image, str) or _IMAGE.fullmatch(image) is None:
        raise InvalidProfileError(f"its sandbox names no image: {image!r}; write it like NAME@sha256:DIGEST")
    if not isinstance(allows_tag, bool) or not (allows_tag or "@" in image):
        raise InvalidProfileError(
            f"the image {image!r} of its sandbox has no digest, so another can take its place: write"
            f' {image}@sha256:DIGEST, or add "allow_tag": true'
        )
    return Container(engine, image, allows_tag)


def _parse_network(value: JsonValue) -> tuple[str, ...]:
    if value not in ("none", "any"):
        raise InvalidProfileError(f"the network of its sandbox must be none or any, not {value!r}")
    return (ANY_HOST,) if value == "any" else ()


def _parse_name(value: JsonValue) -> ProfileName:
    if value not in PROFILES:
        raise InvalidProfileError(f"there is no sandbox profile {value!r}; there are off, {', '.join(PROFILES)}")
    return value


def _parse_texts(value: JsonObject, key: str) -> tuple[str, ...] | None:
    texts = value.get(key)
    if texts is None:
        return None
    if not isinstance(texts, list) or not all(isinstance(text, str) and text and "\0" not in text for text in texts):
        raise InvalidProfileError(f"the {key} of its sandbox must be a list of strings")
    return tuple(cast("list[str]", texts))


def parse_host(text: str) -> str:
    """Parse `host`, `host:port`, `*.host:port`, `[address]:port` or `*`; without a port it's 443.

    Raises:
        InvalidProfileError: It's none of these.
    """
    if text == ANY_HOST:
        return text
    name, port = text.lower().rstrip("."), str(_HTTPS)
    if not name.endswith("]") and ":" in name:
        name, _, port = name.rpartition(":")
    if _HOST.fullmatch(name) is None or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        raise InvalidProfileError(f"its sandbox names no host: {text!r}; write it like api.github.com:443")
    return f"{name}:{int(port)}"


def server_home(server: str, owner: str = "") -> str:
    """Return the private home of a server, which lasts. `owner` is the file with its row."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", server)[:64].lstrip(".")
    return os.path.join(state_dir(), "servers", f"{name}-{content_hash([server, owner])[:12]}")
