"""A server with one fault: `fault.py MODE [WORD …] [--era legacy|modern|both] [--log FILE]`.

Besides its fault it is well-behaved. The tool `echo` always works; the tool `fault`, in the modes
that concern a call, does what the mode is about. Without a mode it lists the modes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

# Started with -I as well, when Python does not look beside the script by itself.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from malformed import ANSWERS, DIRTY, LISTS, SCHEMA, TOOLS, frame
from peer import LIFE_S, Call, Peer, RpcError, complain, split, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from peer import Handler, Json

    Mode = Callable[..., None]

MODES: dict[str, Mode] = {}
MIB = 1024 * 1024
GARBAGE = (
    b"INFO starting",
    b"{",
    b"null",
    b"42",
    b'"text"',
    b'{"jsonrpc":"2.0"}',
    b'{"id":1}',
    b"\x00\x01",
    b"\xff\xfe",
    b"Content-Length: 12",
)


def mode(run: Mode) -> Mode:
    MODES[run.__name__.strip("_").replace("_", "-")] = run
    return run


def on_call(peer: Peer, run: Handler, *, thread: bool = True, **more: Any) -> None:
    peer.add("fault", run, thread=thread, **more)


def nothing_more(peer: Peer) -> None:
    """Swallow every further request; the end of input is still noticed."""
    peer.before = lambda call: False


def let_go(stream: int) -> None:
    """Close a standard stream without leaving its number to the next file."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, stream)
    os.close(null)


# -- starting and ending ----------------------------------------------------------------------


@mode
def mute(peer: Peer) -> None:
    """Read everything, answer nothing."""
    nothing_more(peer)


@mode
def exits(peer: Peer, code: str = "3", said: str = "FATAL: API_KEY is missing") -> None:
    """End with that code before the handshake, with last words."""
    peer.log(f"start {os.getpid()}")
    complain(f"reading settings\n{said}\n")
    os._exit(int(code))


@mode
def slow_start(peer: Peer, seconds: str = "0.5", gate: str = "") -> None:
    """Read nothing at first, for so long and until that file is there."""
    time.sleep(float(seconds))
    if gate:
        _wait_for(gate)


@mode
def gated_start(peer: Peer, path: str) -> None:
    """Read nothing until a FIFO is opened for writing."""
    open(path, "rb").close()


@mode
def slow_discover(peer: Peer, seconds: str = "0.5") -> None:
    """Answer `server/discover` late; other requests wait behind it. Use with --era."""

    def before(call: Call) -> bool:
        if call.method == "server/discover":
            time.sleep(float(seconds))
        return True

    peer.before = before


@mode
def silent_discover(peer: Peer) -> None:
    """Never answer `server/discover`; work in the old way."""
    peer.before = lambda call: call.method != "server/discover"


@mode
def dies_on_unknown(peer: Peer, code: str = "1") -> None:
    """End at the first method it does not know, as `server/discover`; work otherwise."""

    def before(call: Call) -> bool:
        if call.method not in peer.methods or call.method == "server/discover":
            complain(f"unexpected message: {call.method}\n")
            os._exit(int(code))
        return True

    peer.before = before


@mode
def crash_loop(peer: Peer, times: str = "1000") -> None:
    """End after the handshake, the first so many times it is started (needs --log)."""
    with open(str(peer.diary), "a+", encoding="utf-8") as file:
        file.seek(0)
        started = sum(line.startswith("start ") for line in file)

    def initialize(call: Call) -> Json:
        result = peer.initialize(call)
        if started < int(times):
            peer.answer(call, result)
            os._exit(1)
        return result

    peer.methods["initialize"] = initialize


@mode
def version(peer: Peer, spoken: str = "1999-01-01") -> None:
    """Answer `initialize` with a version that nobody knows."""
    peer.version = spoken


@mode
def modern_version(peer: Peer, how: str = "refuse", spoken: str = "2099-01-01") -> None:
    """Be modern, in an unknown version only: `refuse` (-32022) or `offer` it."""
    peer.era = "modern"

    def discover(call: Call) -> Json:
        return {"supportedVersions": [spoken], "capabilities": {}}

    def before(call: Call) -> bool:
        if how == "refuse" or call.method != "server/discover":
            data = {"supported": [spoken], "requested": call.version}
            raise RpcError(-32022, "unsupported protocol version", data)
        return True

    peer.before = before
    peer.methods["server/discover"] = discover


@mode
def locked_modern(peer: Peer, how: str = "refuse") -> None:
    """Be modern, but `refuse` or `drop` the first `server/discover`."""
    peer.era = "modern"
    heard: list[str] = []

    def before(call: Call) -> bool:
        heard.append(call.method)
        if len(heard) == 1 and how == "refuse":
            raise RpcError(-32603, "not ready yet")
        return len(heard) > 1

    peer.before = before


@mode
def stubborn(peer: Peer, *ignored: str) -> None:
    """Ignore the end of input (`eof`), SIGTERM (`term`), or without a word both."""
    if not ignored or "term" in ignored:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not ignored or "eof" in ignored:
        peer.at_end = lambda: time.sleep(LIFE_S)


@mode
def forks(peer: Peer, *how: str) -> None:
    """Leave a child behind (`child PID` in the log): `setsid`, `quiet` (no streams), `stubborn`."""
    child = os.fork()
    if child:
        peer.log(f"child {child}")
        return
    if "setsid" in how:
        os.setsid()
    if "quiet" in how:
        for stream in (0, 1, 2):
            let_go(stream)
    if "stubborn" in how:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(LIFE_S)
    os._exit(0)


# -- streams ----------------------------------------------------------------------------------


@mode
def garbage(peer: Peer, lines: str = "1000") -> None:
    """Write so many lines of no meaning at the start and before every answer."""
    noise = b"".join(GARBAGE[n % len(GARBAGE)] + b"\n" for n in range(int(lines)))
    peer.write(noise)
    peer.before = lambda call: peer.write(noise)


@mode
def banner(peer: Peer) -> None:
    """Write a prompt in front of the first answer, on the same line."""
    peer.write(b"ready> ")


@mode
def bad_utf8(peer: Peer) -> None:
    """Write lines that are no UTF-8, alone before every answer and inside that of `fault`."""
    peer.before = lambda call: peer.write(b"\xff\xfe\xc3\x28 alone\n")
    answers(peer, "bad-utf8")


@mode
def half_line(peer: Peer, then: str = "exit") -> None:
    """Write half an answer to `fault`, then `exit` or `hang`."""

    def run(call: Call) -> None:
        peer.write(frame(call.id, result={})[:20])
        if then == "exit":
            os._exit(0)
        nothing_more(peer)

    on_call(peer, run, thread=False)


@mode
def drip(peer: Peer) -> None:
    """Answer `fault` byte by byte."""

    def run(call: Call) -> None:
        for byte in frame(call.id, result=text("slowly but surely")):
            peer.write(bytes([byte]))
            time.sleep(0.001)

    on_call(peer, run, thread=False)


@mode
def big_line(peer: Peer, mib: str = "50", gate: str = "") -> None:
    """Answer `fault` with one line of that many MiB; half of it waits until that file is there."""

    def run(call: Call) -> None:
        whole = frame(call.id, result=text("")).rstrip()
        before, _, after = whole.rpartition(b'""')
        peer.write(before + b'"')
        for done in range(int(mib)):
            if gate and done == int(mib) // 2:
                _wait_for(gate)
            if not peer.write(b"x" * MIB):
                return
        peer.write(b'"' + after + b"\n")

    on_call(peer, run)


def _wait_for(path: str) -> None:
    end = time.monotonic() + LIFE_S
    while not os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.005)


@mode
def flood(peer: Peer) -> None:
    """Write without end and without a newline when `fault` is called."""

    def run(call: Call) -> None:
        end = time.monotonic() + LIFE_S
        while time.monotonic() < end and peer.write(b"x" * 65536):
            continue

    on_call(peer, run)


@mode
def notice_flood(peer: Peer) -> None:
    """Write notifications without end, 64 KiB of whole lines at a time, once `fault` is called."""

    def run(call: Call) -> None:
        line = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"on"}}\n'
        end = time.monotonic() + LIFE_S
        while time.monotonic() < end and peer.write(line * (65536 // len(line))):
            continue

    on_call(peer, run)


@mode
def stderr_flood(peer: Peer, mib: str = "16") -> None:
    """Write that many MiB of lines, and a very long one, to standard error at the start."""
    for _ in range(int(mib)):
        complain(("\x1b[31mwarning\x1b[0m " + "e" * 48 + "\n") * (MIB // 65))
    complain("e" * MIB + "\nlast words\n")


@mode
def closes(peer: Peer, *streams: str) -> None:
    """Close these of `stdin`, `stdout`, `stderr` when `fault` is called, and live on."""
    numbers = [("stdin", "stdout", "stderr").index(name) for name in streams]

    def run(call: Call) -> Json:
        if 0 in numbers:
            peer.at_end = lambda: time.sleep(LIFE_S)
        for number in numbers:
            let_go(number)
        return text("still here")

    on_call(peer, run, thread=False)


# -- calls ------------------------------------------------------------------------------------


@mode
def hang(peer: Peer) -> None:
    """Never answer `fault`; go on with other calls. `cancelled ID` in the log when told."""

    def run(call: Call) -> None:
        if call.cancelled.wait(LIFE_S):
            peer.log(f"cancelled {call.id}")

    on_call(peer, run)


@mode
def block(peer: Peer, seconds: str = str(LIFE_S)) -> None:
    """Do nothing else, not even read, for that long while `fault` is called."""

    def run(call: Call) -> Json:
        time.sleep(float(seconds))
        return text("awake")

    on_call(peer, run, thread=False)


@mode
def dies(peer: Peer, how: str = "KILL") -> None:
    """End in the middle of `fault`: by the signal of that name, or with that exit code."""

    def run(call: Call) -> None:
        complain("about to die\n")
        if how.isdigit():
            os._exit(int(how))
        os.kill(os.getpid(), signal.Signals[f"SIG{how}"])

    on_call(peer, run, thread=False)


@mode
def answers(peer: Peer, kind: str = "") -> None:
    """Answer `fault` in one of the ways of malformed.ANSWERS, or in that of its argument `kind`."""

    def run(call: Call) -> None:
        # A number in every client here; one that sends text gets a number back all the same.
        peer.write(ANSWERS[kind or str(call.arguments["kind"])](int(call.id)))

    on_call(peer, run, thread=False)


@mode
def late(peer: Peer) -> None:
    """Answer `fault` when told that nobody waits any more."""

    def run(call: Call) -> None:
        call.cancelled.wait(LIFE_S)
        peer.answer(call, text("too late"))
        peer.log(f"late {call.id}")

    on_call(peer, run)


@mode
def ignores_cancel(peer: Peer, seconds: str = "1") -> None:
    """Work on for that long whatever is said, then answer."""

    def run(call: Call) -> None:
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            call.progress(1)
            time.sleep(0.02)
        peer.answer(call, text("finished"))
        peer.log(f"finished {call.id}")

    on_call(peer, run)


@mode
def endless_progress(peer: Peer, pause: str = "0.05", gate: str = "") -> None:
    """Report progress for ever, never answer `fault`; or once that file is there."""

    def run(call: Call) -> Json | None:
        for step in range(int(LIFE_S / float(pause))):
            call.progress(step, message=f"step {step}")
            if call.cancelled.wait(float(pause)):
                peer.log(f"cancelled {call.id}")
                break
            if gate and os.path.exists(gate):
                return text("done")
        return None

    on_call(peer, run)


@mode
def odd_progress(peer: Peer) -> None:
    """Report progress that is no progress, then answer."""

    def run(call: Call) -> Json:
        token = call.meta.get("progressToken")
        odd: list[Json] = [
            {},
            {"progressToken": "nobody", "progress": 1},
            {"progressToken": token},
            {"progressToken": token, "progress": "half", "total": "all", "message": 5},
            {"progressToken": token, "progress": None},
            {"progressToken": token, "progress": -1, "total": 0},
            {"progressToken": token, "progress": float("nan"), "message": DIRTY},
            {"progressToken": [token], "progress": 1},
        ]
        for params in odd:
            peer.notify("notifications/progress", params)
        return text("done")

    on_call(peer, run)


@mode
def chatter(peer: Peer, count: str = "1000") -> None:
    """Send so many log messages, and unknown notifications, before the answer to `fault`."""

    def run(call: Call) -> Json:
        for number in range(int(count)):
            peer.notify("notifications/message", {"level": "info", "data": f"line {number}"})
            peer.notify("notifications/vendor/unheard_of")
        return text("done")

    on_call(peer, run)


@mode
def burst(peer: Peer, count: str = "1000") -> None:
    """Say so many times that the tools have changed, then answer `fault`."""

    def run(call: Call) -> Json:
        for _ in range(int(count)):
            peer.changed()
        return text("done")

    on_call(peer, run)


@mode
def inbound(peer: Peer, count: str = "100", method: str = "sampling/createMessage") -> None:
    """Ask the client so much at once, declared or not; answer with what came back, counted."""

    def run(call: Call) -> Json:
        params: Json = {"messages": [], "maxTokens": 1, "message": "?", "requestedSchema": SCHEMA}
        asked = [peer.push(method, params) for _ in range(int(count))]
        counts: Json = {}
        for question in asked:
            answer = question.wait() or {}
            error = answer.get("error")
            key = str(error["code"]) if error else "result" if "result" in answer else "nothing"
            counts[key] = counts.get(key, 0) + 1
        return text(json.dumps(counts), structuredContent=counts)

    on_call(peer, run)


@mode
def asks(peer: Peer, method: str = "elicitation/create") -> None:
    """Ask the client once, whether it allows that or not; answer with what came back."""

    def run(call: Call) -> Json:
        answer = peer.push(method, {"message": "?", "requestedSchema": SCHEMA}).wait()
        return text(json.dumps(answer), structuredContent=answer)

    on_call(peer, run)


@mode
def input_for_ever(peer: Peer, method: str = "") -> None:
    """Answer `fault` with yet another question, or without a method with none at all."""

    def run(call: Call) -> Json:
        params = {"message": "?", "requestedSchema": SCHEMA}
        asked: Json = {"question": {"method": method, "params": params}} if method else {}
        return {"resultType": "input_required", "inputRequests": asked, "requestState": "again"}

    on_call(peer, run)


@mode
def output_mismatch(peer: Peer, how: str = "wrong") -> None:
    """Break the promise of an output schema: `wrong` structured content, or `missing`."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    def run(call: Call) -> Json:
        return text("useful", structuredContent={"n": "five"}) if how == "wrong" else text("useful")

    on_call(peer, run, outputSchema=schema)


# -- lists ------------------------------------------------------------------------------------


@mode
def tools(peer: Peer, kind: str) -> None:
    """List nine good tools and, among them, one of malformed.TOOLS; a call gives its name back."""
    good: list[Any] = [{"name": f"good_{number}", "description": "Good.", "inputSchema": SCHEMA} for number in range(9)]
    peer.tools = [*good[:4], TOOLS[kind], *good[4:]]
    peer.methods["tools/call"] = lambda call: text(str(call.params["name"]))


@mode
def lists(peer: Peer, kind: str) -> None:
    """Answer `tools/list` with one of malformed.LISTS, or `hang`, or with an `error`."""

    def listed(call: Call) -> Json | None:
        if kind == "error":
            raise RpcError(-32603, "the list was lost")
        return None if kind == "hang" else LISTS[kind]

    peer.methods["tools/list"] = listed


@mode
def many_tools(peer: Peer, count: str = "20000", padding: str = "0") -> None:
    """List so many tools on one page, each with so many characters of description."""
    said = "d" * int(padding)
    for number in range(int(count)):
        name = f"tool_{number}"
        peer.tools.append({"name": name, "description": said, "inputSchema": SCHEMA})


@mode
def pages(peer: Peer, how: str = "endless") -> None:
    """Never come to the last page: `endless` new cursors, `same` cursor, or a `cycle` of three."""

    def listed(call: Call) -> Json:
        number = int(str(call.params.get("cursor", "0")))
        after = {"endless": number + 1, "same": 1, "cycle": (number + 1) % 3}[how]
        tool = {"name": f"tool_{number}", "description": "One.", "inputSchema": SCHEMA}
        return {"tools": [tool], "nextCursor": str(after)}

    peer.methods["tools/list"] = listed


@mode
def dirty(peer: Peer) -> None:
    """Send escape sequences, bidi and tag characters wherever text is sent, stderr included."""
    peer.info = {"name": DIRTY, "version": DIRTY, "title": DIRTY}
    on_call(peer, lambda call: text(DIRTY), title=DIRTY, annotations={"title": DIRTY})
    peer.tools[-1]["description"] = DIRTY
    complain(DIRTY + "\n")


def echo(call: Call) -> Json:
    """Say it again."""
    return text(str(call.arguments.get("text", "")))


def main() -> None:
    words, options = split(sys.argv[1:])
    if not words or words[0] not in MODES:
        table = "".join(f"{name:18} {run.__doc__}\n" for name, run in MODES.items())
        complain(f"{__doc__}\n{table}")
        os._exit(2)
    peer = Peer("fault", options)
    peer.add("echo", echo, {"text": {"type": "string"}})
    MODES[words[0]](peer, *words[1:])
    peer.serve()


main()
