"""A secret in every place that takes one, servers that repeat it, and a search of what indus writes, shows or sends.

Secrets of every source are in use at the same time: `Aviary.find` of what the servers, services and models of the test
were sent says so. Then no sink may have any of them, plain, escaped or encoded, whole or in part.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio
import httpx2
import pytest
from tests.commands.helpers import configured, row, user_file
from tests.commands.serving import hello, serving, wait_for
from tests.support.broker import broker_process
from tests.support.canaries import Aviary, read_files
from tests.support.credentials import make_credentials
from tests.support.forked import start_command
from tests.support.gossip import gossip_server
from tests.support.model_server import Reply, calls, model_server, says
from tests.support.scripts import command, run
from tests.support.servers import SERVERS
from tests.support.waiting import LIMIT_S

from indusagi.core.app_dirs import state_dir
from indusagi.interop.auth.contract import CredentialKey
from indusagi.interop.auth.secrets import SecretFiles
from indusagi.interop.auth.storage import CredentialFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.support.gossip import Gossip
    from tests.support.model_server import ModelServer

pytestmark = pytest.mark.process
PAGES = (
    *("", "approvals", "tools", "resources", "prompts", "drift", "calls", "call?id=1", "call?id=9", "timeline"),
    *("deck", "sessions", "session", "cluster", "nowhere"),
)
COMMANDS = (
    *("mcp list --json", "mcp doctor", "mcp auth", "mcp auth --json", "mcp diff", "mcp lock --json"),
    *("mcp import --dry-run --json", "ledger timeline", "ledger export", "calls --json", "calls 1", "top --once"),
    *("approvals list", "connectors list --json", "connectors doctor", "settings show --json", "tools list --json"),
    *("serve --print-config claude", "serve --install cursor --dry-run", "call talks__fail", "mcp login unsigned"),
    *("secrets list --json", "secrets check", "models", "tokens list", "tokens audit", "secrets move dies --yes"),
)
CLUSTER_COMMANDS = (
    *("cluster status", "cluster status --json", "cluster placements", "cluster verify", "cluster config"),
    *("cluster drain nowhere", "settings show --json", "calls --cluster", "tokens list --cluster"),
)


def test_no_secret_leaves_the_way_to_its_service(tmp_path: Path) -> None:
    aviary, cwd, scratch, temporary = Aviary(), tmp_path / "project", tmp_path / "scratch", tmp_path / "tmp"
    for folder in (cwd / ".indusvx", scratch, temporary):
        folder.mkdir(parents=True)
    access, refresh = aviary.plant("access token", safe=True), aviary.plant("refresh token", safe=True)
    key, hook = aviary.plant("model key", safe=True), aviary.plant("webhook", safe=True)
    diary = scratch / "diary"
    script = (calls("talks__answer"), calls("web__err"), says("Done."), Reply(status=401, error=f"{key} is wrong"))
    with gossip_server(access, refresh) as gossip, model_server(*script) as model:
        rows = build_rows(aviary, gossip, scratch)
        variables = {
            "CANARY_TOKEN": aviary.plant("${VAR}"),
            "TELL_INHERITED_KEY": aviary.plant("env_vars"),
            "OPENAI_API_KEY": key,
            "OPENAI_BASE_URL": f"{model.url}/v1",
            "SHOP_KEY": aviary.plant("connector key", safe=True),
            "OTEL_EXPORTER_OTLP_ENDPOINT": gossip.url,
            "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={aviary.plant('collector key', safe=True)}",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            "TMPDIR": str(temporary),
        }
        approvals = {"notify": f"{gossip.url}/hook/{hook}?sig={hook}", "wait_s": 1, "mode": "ask"}
        settings = user_file().parents[1] / "indus" / "settings.json"
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(json.dumps({"calls": {"record": "payloads"}, "approvals": approvals}))
        (cwd / ".indusvx" / "permissions.json").write_text(json.dumps({"ask": ["boxed__answer"]}))
        stored_key = aviary.plant("stored model key", safe=True)
        for name, value in (("kept", aviary.plant("${keyring:}")), ("OPENAI_API_KEY", stored_key)):
            SecretFiles().set(name, value)
        meant = [configured(user_file(), rows), settings]
        stored = CredentialKey(gossip.url, f"{gossip.url}/oauth/stored/mcp")
        anyio.run(CredentialFiles().save, make_credentials(stored, "expired", refresh))
        auth = ("--base-url", f"{gossip.url}/api", "--auth", "header:X-Shop-Key:SHOP_KEY")
        see_command(aviary, "connectors", "add", "shop", write_document(scratch), *auth, cwd=cwd, **variables)

        words = ("--http", "127.0.0.1:0", "--web-allow", "127.0.0.1", "--profile", "all", "--allow", "saas-action")
        with serving(*words, cwd=cwd, **variables) as gateway:
            wait_for(lambda: "native tools" in gateway.said())
            url = gateway.said().partition("serving at ")[2].split()[0]
            token = (Path(state_dir()) / "serve-token").read_text("ascii").strip()
            aviary.add("token of the gateway", token)
            created = run("tokens", "create", "ci", cwd=cwd).stdout.strip()
            aviary.add("named token", created)
            use_gateway(aviary, url, token)
            use_gateway(aviary, url, created)
            see_processes(aviary, gateway.pid)
            for name in ("ledger", "calls"):
                written = [path.read_bytes() for path in Path(state_dir()).glob(f"{name}*") if path.is_file()]
                assert written
                aviary.see(f"{name}, while it's written", *written)
        # The token is shown once, to the person who starts the gateway.
        aviary.see("log of the gateway", gateway.said().replace(token, "", 1))
        see_session(aviary, cwd, variables)
        model.script[:] = [Reply(status=401, error=f"{stored_key} is wrong")]
        see_session(aviary, cwd, {name: value for name, value in variables.items() if name != "OPENAI_API_KEY"})
        use_commands(aviary, cwd, variables, [*rows])
        state = Path(state_dir())
        meant += [
            gateway.log,
            state / "serve-token",
            *(state / "credentials").iterdir(),
            *(state / "secrets").iterdir(),
        ]
        use_unconfigured(aviary, cwd, rows["dies"]["args"])
        aviary.see("telemetry", *gossip.exported)
        arrived = {source for source, _ in aviary.find(list_arrivals(gossip, model, diary, token, created))}
    for folder in (Path(os.environ["HOME"]), cwd, temporary):
        for name, data in read_files(folder, meant):
            aviary.see("names of files", name)
            aviary.see(f"file {re.sub('[0-9a-f]{16,}|[0-9A-Z]{26}', '*', name)}" if data else "names of files", data)
    sys.stdout.write(aviary.format_table())
    assert {*aviary.canaries} - arrived == set()
    assert [*aviary.list_hits()] == []
    assert (len(aviary.canaries) >= 22, len(aviary.sinks) >= 40) == (True, True)


def test_no_password_of_a_broker_is_shown(tmp_path: Path) -> None:
    """It's in the address, and in the variable for it; the broker accepts it, refuses it, or isn't there."""
    aviary = Aviary()
    password, wrong = aviary.plant("password of a broker", safe=True), aviary.plant("wrong password", safe=True)
    configured(user_file(), {"one": row()})
    with broker_process(tmp_path / "broker", ("--user", "ada", "--pass", password)) as broker:
        address = broker.url.removeprefix("nats://")
        urls = [f"nats://ada:{password}@{address}", f"nats://ada:{wrong}@{address}", f"nats://ada:{wrong}@127.0.0.1:9"]
        urls += [f"nats://ada:{wrong}@[::1", f"ftp://ada:{wrong}@{address}"]
        see_command(aviary, "cluster", "init", "--cluster", urls[0], cwd=tmp_path)
        # Together, since each waits for the end of its limit.
        flags: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "cwd": tmp_path}
        flags["stderr"] = subprocess.STDOUT
        node = ("serve", "--http", "127.0.0.1:0", "--cluster", urls[1])
        failing = [start_command([command(), "cluster", "status", "--cluster", url], **flags) for url in urls[1:]]
        for process in (*failing, start_command([command(), *node], **flags)):
            with process:
                shown = process.communicate(timeout=LIMIT_S)[0]
            assert process.returncode != 0
            aviary.see("errors about a broker", shown)
        made = run("cluster", "status", "--cluster", urls[0], cwd=tmp_path)
        assert (made.returncode, made.stderr.count("has a password")) == (0, 1)
        with_variable = {"INDUS_BROKER_CREDENTIALS": f"ada:{password}"}
        words = ("--http", "127.0.0.1:0", "--no-token", "--profile", "none", "--node", "a", "--cluster", urls[0])
        with serving(*words, cwd=tmp_path) as gateway:
            wait_for(lambda: "native tools" in gateway.said())
            base = gateway.said().partition("serving at ")[2].split()[0].removesuffix("/mcp")
            key = gateway.said().partition("/ui?key=")[2].split()[0]
            with httpx2.Client(timeout=LIMIT_S) as client:
                pages = (
                    f"{base}/ui?key={key}",
                    f"{base}/ui/cluster",
                    f"{base}/ui",
                    f"{base}/health",
                    f"{base}/metrics",
                )
                aviary.see("page", *(client.get(page).text for page in pages))
            see_processes(aviary, gateway.pid)
            for line in CLUSTER_COMMANDS:
                see_command(aviary, *line.split(), "--cluster", address, cwd=tmp_path, **with_variable)
        aviary.see("log of a node", gateway.said())
        assert gateway.said().count("has a password") == 1
    for folder in (Path(os.environ["HOME"]), tmp_path):
        for name, data in read_files(folder, [*(tmp_path / "broker").rglob("*")]):
            aviary.see("names of files", name)
            aviary.see("files", data)
    assert aviary.list_hits() == []


def build_rows(aviary: Aviary, gossip: Gossip, scratch: Path) -> dict[str, Any]:
    """Configure servers that work and repeat what they're given, and servers that fail in every way."""
    plant, address = aviary.plant, gossip.url.removeprefix("http://")
    query = f"?key={quote(plant('query of a URL'), safe='')}&plain=1"
    env = {"TELL_API_KEY": plant("variable of a row"), "TELL_REFERENCE": "${CANARY_TOKEN}"}
    user = f"http://ada:{quote(plant('password of a URL'), safe='')}@"
    proxy = f"http://ada:{quote(plant('proxy of a row'), safe='')}@"
    script = scratch / "helper.sh"
    helped = {"X-Helper-Key": plant("command for headers", safe=True)}
    script.write_text(f"echo '{json.dumps(helped)}'\n", "utf-8")
    oauth = {"grant": "client_credentials", "client_id": "me", "client_secret": plant("client secret", safe=True)}
    bad = {**oauth, "metadata_url": f"{gossip.url}/.well-known/oauth-authorization-server/bad"}
    bearer = {"Authorization": f"Bearer {plant('bearer token', safe=True)}"}

    files = {kind: write_secret(scratch, kind, plant(f"${{{kind}:}}")) for kind in ("file", "cmd")}
    read = {"TELL_FILE": f"${{file:{files['file']}}}", "TELL_CMD": f"${{cmd:cat {files['cmd']}}}"}

    def run_gossip(mode: str, *words: str, **more: Any) -> dict[str, Any]:
        args = ["-I", "-S", str(SERVERS / "gossip.py"), mode, str(scratch / "diary"), *words]
        return {"command": sys.executable, "args": args, "env": env, **more}

    def at(path: str) -> dict[str, Any]:
        return {"url": gossip.url + path + query, "headers": {"X-Api-Key": plant("header", safe=True)}}

    return {
        "talks": run_gossip("talks", f"--api-key={plant('argument')}", env_vars=["TELL_INHERITED_KEY"]),
        "boxed": run_gossip("talks", sandbox="standard"),
        "kept": run_gossip("talks", env={"TELL_KEPT": "${keyring:kept}", **read}),
        "dies": run_gossip("dies", "--token", plant("argument")),
        "babbles": run_gossip("babbles"),
        "web": at("/mcp"),
        "user": {"url": f"{user}{address}/mcp"},
        "bearer": {"url": f"{gossip.url}/mcp", "headers": bearer},
        **{name: at(f"/{name}") for name in ("refuse", "broken", "page", "moved")},
        "gone": {"url": f"{user}127.0.0.1:9/mcp{query}"},
        "odd": {"url": f"{user}[::1/mcp{query}"},
        "proxied": {"url": "http://gossip.invalid/mcp", "proxy": proxy + address},
        "dead-proxy": {"url": "http://gossip.invalid/mcp", "proxy": f"{proxy}127.0.0.1:9"},
        "signed": {"url": f"{gossip.url}/oauth/mcp", "auth": oauth},
        "unsigned": {"url": f"{gossip.url}/oauth/bad/mcp", "auth": bad},
        "stored": {"url": f"{gossip.url}/oauth/stored/mcp"},
        "helped": {"url": f"{gossip.url}/mcp", "headersHelper": f"sh {script}"},
        "unhelped": {"url": f"{gossip.url}/mcp", "headersHelper": f"sh {script}; cat {script} >&2; exit 1"},
        "unset": {"url": f"{gossip.url}/mcp", "headers": {"Authorization": "Bearer ${UNSET_TOKEN}"}},
    }


def write_secret(folder: Path, name: str, value: str) -> Path:
    """Write a private file with a secret."""
    path = folder / f"{name}.secret"
    path.write_text(f"{value}\n", "utf-8")
    path.chmod(0o600)
    return path


def write_document(folder: Path) -> str:
    """Write the OpenAPI document of a service that works once and fails once."""
    paths = {f"/{name}": {"get": {"operationId": f"get{name}", "summary": name}} for name in ("Fine", "Failing")}
    path = folder / "shop.json"
    path.write_text(json.dumps({"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"}, "paths": paths}))
    return str(path)


def list_arrivals(gossip: Gossip, model: ModelServer, diary: Path, *tokens: str) -> bytes:
    """Return all that the servers, services and models were sent, and what the gateway's client sent to it."""
    sent = [value.encode() for headers in model.headers for value in headers.values()]
    return b"\n".join([*gossip.heard, diary.read_bytes(), *sent, *map(str.encode, tokens)])


def see_command(aviary: Aviary, *words: str, cwd: Path, **variables: str) -> None:
    """Run a command, and see what it writes."""
    done = run(*words, cwd=cwd, **variables)
    aviary.see(f"indus {words[0]} {words[1] if len(words) > 1 else ''}".strip(), done.stdout, done.stderr)


def use_gateway(aviary: Aviary, url: str, token: str) -> None:
    """Call every tool as a client, and load every page."""
    base = url.removesuffix("/mcp")
    headers = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {token}"}
    with httpx2.Client(headers=headers, timeout=LIMIT_S) as client:
        opened = client.post(url, json=hello())
        session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}

        def ask(method: str, **params: Any) -> str:
            frame = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
            return client.post(url, json=frame, headers=session).text

        listed = ask("tools/list")
        names = re.findall(r'"name":\s*"(\w+__\w+)"', listed)
        aviary.see("list of tools", listed)
        aviary.see("results of tools", *(ask("tools/call", name=name, arguments={}) for name in names))
        for name in ("FINE", "FAILING"):
            action: dict[str, Any] = {"action": "execute", "slug": f"SHOP_GET_{name}", "arguments": {}}
            aviary.see("results of a connector", ask("tools/call", name="saas-action", arguments=action))
        refused = {"authorization": f"Bearer {token}x"}
        aviary.see("refused request", client.post(url, json=hello(), headers=refused).text)
        aviary.see("metrics", client.get(f"{base}/metrics").text)
        aviary.see("health", client.get(f"{base}/health").text)
        servers = sorted({name.partition("__")[0] for name in names} | {"dies", "refuse", "unsigned", "gone"})
        pages = (*PAGES, *(f"tool?name={name}" for name in names[:6]), *(f"server?name={name}" for name in servers))
        aviary.see("page", *(client.get(f"{base}/ui/{page}").text for page in pages))
        with client.stream("GET", f"{base}/ui/events") as events:
            aviary.see("events of the page", next(events.iter_bytes(), b""))


def see_processes(aviary: Aviary, gateway: int) -> None:
    """Look at the processes of a gateway: arguments, variables, and whether they'd leave a core dump."""
    assert resource.prlimit(gateway, resource.RLIMIT_CORE)[0] == 0
    for pid in list_descendants(gateway):
        assert resource.prlimit(pid, resource.RLIMIT_CORE)[0] == 0
        words, environ = (read_process(pid, name).split(b"\0") for name in ("cmdline", "environ"))
        # What a row gives to its server, and bubblewrap hands on.
        given = (b"TELL_", b"--api-key=")
        own = given if any(word.endswith(b"gossip.py") for word in words) else ()
        aviary.see("arguments of processes", *(word for word in words if not word.startswith(own)))
        aviary.see("variables of processes", *(one for one in environ if not one.startswith(own)))


def list_descendants(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text("ascii").split()):
            yield child
            yield from list_descendants(child)


def read_process(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has just ended
        return b""


def use_commands(aviary: Aviary, cwd: Path, variables: Mapping[str, str], names: Sequence[str]) -> None:
    """Run the commands that show something."""
    for line in COMMANDS:
        see_command(aviary, *line.split(), cwd=cwd, **variables)
    for name in names:
        see_command(aviary, "mcp", "get", name, "--json", cwd=cwd, **variables)
    for name in ("talks", "dies", "babbles", "unsigned"):
        for word in ("get", "logs"):
            see_command(aviary, "mcp", word, name, cwd=cwd, **variables)


def use_unconfigured(aviary: Aviary, cwd: Path, args: Sequence[str]) -> None:
    """Try a server whose secrets are in the command itself, and add it."""
    target = [sys.executable, *("talks" if word == "dies" else word for word in args)]
    variable = ("-e", f"TELL_API_KEY={aviary.plant('variable of a row')}")
    for words in (("try", "--call", "err"), ("try", "--json", "--call", "fail"), ("mcp", "add", "new", "--no-check")):
        see_command(
            aviary, *words, *variable, *(("--sandbox", "off") if words[0] == "try" else ()), "--", *target, cwd=cwd
        )
    see_command(aviary, "call", "--stdio", shlex.join(target), "err", cwd=cwd)


def see_session(aviary: Aviary, cwd: Path, variables: Mapping[str, str]) -> None:
    """Let a model call the servers, then refuse the key."""
    words = ("--model", "m", "--approval", "all", "--output-format", "stream-json")
    for sink in ("session", "error of a model"):
        done = run("-p", "hello", *words, cwd=cwd, **variables)
        aviary.see(sink, done.stdout, done.stderr)
