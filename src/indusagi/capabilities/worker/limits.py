"""Limits of a process that works on what a stranger wrote."""

from __future__ import annotations


def limit_ourselves(cpu_s: int, memory_bytes: int) -> None:
    """Set limits of time and memory for this process; where there is no such limit, go without."""
    import resource  # noqa: PLC0415 — for the process alone, where there is one

    for kind, most in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CPU, cpu_s)):
        try:
            resource.setrlimit(kind, (most, most))
        except (OSError, ValueError):  # a stricter limit holds already, or the system has none
            continue
