"""One visit to a server: connect, list, call, close, and see that nothing is left of it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object
from indusagi.interop import (
    BridgeConfig,
    ProtocolFault,
    RemoteToolRef,
    ServerLimits,
    StdioServerConfig,
    create_server_endpoint,
    mount_protocol_bridge,
)
from indusagi.runtime.contract import ToolCall
from outside.host import agreeable
from outside.leftovers import Watch

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from indusagi.interop import MountedProtocolBridge, RemoteCallResult, ServerConfig, ServerEndpointImpl
    from indusagi.runtime.contract import ToolProgress
    from outside.servers import Call, Server


_PATIENT = ServerLimits(connect_s=60.0)
"""How fast a server starts on a busy machine is not what is examined here."""


@dataclass(slots=True)
class Visit:
    """How a visit went."""

    server: str
    transport: str
    spoken: str = ""
    """The era and the version of the protocol that was agreed on."""
    tools: int = 0
    called: list[str] = field(default_factory=list[str])
    ms: float = 0.0
    """From opening to the last answer."""
    wrong: list[str] = field(default_factory=list[str])
    skipped: str = ""

    @property
    def verdict(self) -> str:
        """One word if all is well, else why not."""
        told = [what if times == 1 else f"{times} x {what}" for what, times in Counter(self.wrong).items()]
        return f"FAILED: {'; '.join(told)}" if told else "ok"


def stdio(server: Server) -> StdioServerConfig:
    """Make the configuration of a server."""
    command, *arguments = server.command
    return StdioServerConfig(server.id, command, arguments, server.env, limits=_PATIENT)


async def visit(config: ServerConfig, calls: Sequence[Call]) -> Visit:
    """Visit one server through an endpoint of its own."""
    done = Visit(config.id, config.kind)
    with nothing_left(done) as watch:
        endpoint = create_server_endpoint(config, handlers=agreeable())
        try:
            await _use(endpoint, calls, done)
        except ProtocolFault as fault:
            done.wrong.append(f"{fault.kind}: {fault}")
        finally:
            watch.look()
            await endpoint.close()
    return done


async def _use(endpoint: ServerEndpointImpl, calls: Sequence[Call], done: Visit) -> None:
    start = time.perf_counter()
    await endpoint.open()
    facts = endpoint.facts
    done.spoken = "" if facts is None else f"{facts.era} {facts.version}"
    done.tools = len(await endpoint.list_tools())
    for call in calls:
        steps: list[ToolProgress] = []
        answer = await endpoint.invoke(call.tool, call.arguments, on_progress=steps.append)
        done.called.append(call.tool)
        _judge(call, _text(answer), len(steps), done, is_error=answer.is_error)
    done.ms = (time.perf_counter() - start) * 1000


async def visit_together(servers: Sequence[Server]) -> Visit:
    """Visit several servers at once, mounted as the tools of one box."""
    done = Visit("all of these", "stdio, mounted")
    with nothing_left(done) as watch:
        start = time.perf_counter()
        config = BridgeConfig([stdio(server) for server in servers])
        mounted = await mount_protocol_bridge(config, handlers=agreeable())
        try:
            done.tools = len(mounted.tools)
            for status in mounted.fleet.status().values():
                if status.fault is not None:
                    done.wrong.append(str(status.fault))
            for server in servers:
                await _use_mounted(mounted, server, done)
            done.ms = (time.perf_counter() - start) * 1000
        finally:
            watch.look()
            await mounted.fleet.tear_down()
    return done


async def _use_mounted(mounted: MountedProtocolBridge, server: Server, done: Visit) -> None:
    call = server.calls[0]
    ref = RemoteToolRef(server.id, call.tool)
    for tool in mounted.tools:
        if tool.ref == ref:
            name = tool.remote.descriptor.name
            outcome = await mounted.box.runner.run(ToolCall("1", name, call.arguments))
            done.called.append(name)
            _judge(call, str(outcome.result.content), 0, done, is_error=outcome.result.is_error)
            return
    done.wrong.append(f"{server.id} has no tool {call.tool}")


def _judge(call: Call, text: str, steps: int, done: Visit, *, is_error: bool) -> None:
    if is_error or call.expected not in text:
        done.wrong.append(f"{call.tool} answered {text[:200]!r}")
    if steps < call.steps:
        done.wrong.append(f"{call.tool} told of {steps} steps")


def _text(answer: RemoteCallResult) -> str:
    texts = [block.get("text") for block in answer.content if is_json_object(block)]
    return "\n".join(text for text in texts if isinstance(text, str))


@contextmanager
def nothing_left(done: Visit) -> Generator[Watch]:
    """See that no process is left, and that nothing went wrong out of everybody's sight."""
    loop = asyncio.get_running_loop()
    watch = Watch()
    unseen: list[str] = []
    loop.set_exception_handler(lambda _, context: unseen.append(_describe_tasks(context)))
    try:
        yield watch
        done.wrong.extend(f"process left: {process}" for process in watch.left())
        # The exception of an abandoned task is reported when the task is collected.
        gc.collect()
        done.wrong.extend(unseen)
    finally:
        loop.set_exception_handler(None)


def _describe_tasks(context: dict[str, object]) -> str:
    exception = context.get("exception")
    return str(context.get("message")) + (f": {exception!r}" if exception else "")
