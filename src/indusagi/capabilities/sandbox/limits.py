"""Limits of what a sandboxed server may use: memory, processes and disk space (see `usage` for how they're held)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from indusagi.core.json import is_json_object
from indusagi.core.records import record

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"([1-9]\d{0,8})([KMG])(?:i?B)?", re.ASCII)
_MIN_PROCESSES = 16
_MAX_PROCESSES = 1 << 20


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
