"""Sending fuzzed requests to a gateway, and what came back."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outside.host_fuzz.generate import RequestMaker, make_key_sets

if TYPE_CHECKING:
    from random import Random

    from tests.support.issuer import Issuer

    from outside.host_fuzz.generate import FuzzedRequest

_ANSWER_S = 60.0
_GOOD_EVERY = 200
_CLIENTS = 16


@dataclass
class FuzzReport:
    """What happened."""

    statuses: Counter[int] = field(default_factory=Counter[int])
    """By status; 0: no response came."""
    unanswered: list[tuple[bool, bytes, int]] = field(default_factory=list[tuple[bool, bytes, int]])
    """Requests without a response: whether each was cut, its beginning, and its length."""
    refused_good: Counter[int] = field(default_factory=Counter[int])
    """Statuses of good requests in between, other than 200."""


async def send_all(random: Random, url: str, issuer: Issuer, count: int) -> FuzzReport:
    """Send so many requests, a good one now and then, while the issuer publishes odd keys."""
    report, maker, port = FuzzReport(), RequestMaker(random, url, issuer), int(url.split(":")[2].split("/")[0])
    left = count

    async def send_some() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            if left % _GOOD_EVERY == 0:
                issuer.published = make_key_sets(random, issuer)
                status = await exchange(port, maker.make_good())
                if status != 200:
                    report.refused_good[status] += 1
                continue
            request = maker.make()
            status = await exchange(port, request)
            report.statuses[status] += 1
            if not status:
                report.unanswered.append((request.is_cut, request.data[:1_500], len(request.data)))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_CLIENTS):
            tasks.create_task(send_some())
    return report


async def exchange(port: int, request: FuzzedRequest) -> int:
    """Send one request on its own connection; return the status of the first final response, 0 if there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request.data)
        if request.is_cut:
            writer.write_eof()
        async with asyncio.timeout(_ANSWER_S):
            status = 100
            while status < 200:  # RFC 9110 §15.2: an interim response comes first
                head = await reader.readuntil(b"\r\n\r\n")
                status = int(head.split(b" ", 2)[1])
        return status
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, ValueError):
        return 0
    finally:
        writer.transport.abort()
