"""All rows, in the order of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import (
    agents,
    answer,
    bridge,
    calls,
    cluster,
    code_mode,
    commands,
    deck,
    gateway,
    kernel,
    sandbox,
    search,
    sign_in,
    start,
    terminal,
    tools,
)
from bench.gateway import access_tokens
from bench.gateway import crowd as gateway_crowd
from bench.tools import search as tools_search

if TYPE_CHECKING:
    from bench.row import Row

ROWS: tuple[Row, ...] = (
    *start.ROWS,
    *commands.ROWS,
    *answer.ROWS,
    *terminal.ROWS,
    *agents.ROWS,
    *kernel.ROWS,
    *tools_search.ROWS,
    *tools.ROWS,
    *bridge.ROWS,
    *sandbox.ROWS,
    *sign_in.ROWS,
    *deck.ROWS,
    *gateway.ROWS,
    *gateway_crowd.ROWS,
    *access_tokens.ROWS,
    *calls.ROWS,
    *cluster.ROWS,
    *search.ROWS,
    *code_mode.ROWS,
)
