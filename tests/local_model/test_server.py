"""The server of the local model: the process behind it, and a session that uses it."""

from __future__ import annotations

import json
import os
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from tests.support.model_server import model_server, says
from tests.support.sessions import SessionSetup, to_text

from induscode.launch.invocation import Invocation
from induscode.local_model import host, server
from induscode.local_model.server import LocalWeights, open_local_server
from induscode.local_model.weights import WeightsError
from induscode.session.models import NoModelError, choose_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.model_server import ModelServer

ENGINE = """
    import json, os, sys
    from types import SimpleNamespace as Part
    print("a line of the engine on standard output", flush=True)
    class CommonParams:
        def __init__(self):
            self.model, self.sampling, self.cpuparams, self.cpuparams_batch = Part(), Part(), Part(), Part()
    class Server:
        def __init__(self, params):
            with open(params.model.path, encoding="utf-8") as file:
                text = file.read()
            if not text.startswith("http"):
                print("llama: magic is wrong", file=sys.stderr, flush=True)
                sys.exit(1)
            with open(params.model.path + ".seen", "w", encoding="utf-8") as file:
                json.dump([params.n_ctx, params.api_keys, params.hostnames, params.chat_template, os.getpid()], file)
            self.listening_address = text
"""
"""An engine whose weights are the address of a server."""


def find_nothing(_: str) -> object:
    return None


def find_something(_: str) -> object:
    return object()


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the process of the model find an engine in a folder, and the rest as it is."""
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "xllamacpp.py").write_text(dedent(ENGINE))
    start = folder / "start.py"
    path, script = str(folder), host.__file__
    start.write_text(
        f"import runpy, sys\nsys.path.insert(0, {path!r})\nrunpy.run_path({script!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(server, "host", type("Host", (), {"__file__": str(start)}))
    monkeypatch.setattr(server, "has_engine", lambda: True)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ModelServer]:
    with model_server() as running:
        (tmp_path / "tiny.gguf").write_text(running.url)
        yield running


@pytest.mark.process
@pytest.mark.usefixtures("engine")
async def test_the_server_has_a_key_and_ends_with_its_block(tmp_path: Path, model: ModelServer) -> None:
    weights = LocalWeights("tiny", str(tmp_path / "tiny.gguf"), 4_096)
    async with open_local_server(weights) as address:
        assert address.base_url == f"{model.url}/v1"
        window, keys, hosts, template, pid = json.loads((tmp_path / "tiny.gguf.seen").read_text())
        assert (window, keys, hosts, template) == (4_096, [address.key], ["127.0.0.1"], "")
        assert len(address.key) > 40
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.process
@pytest.mark.usefixtures("engine")
async def test_weights_that_cannot_be_loaded_are_named_with_the_last_words_of_the_engine(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_text("GGUF?")
    with pytest.raises(WeightsError, match=r"the engine cannot load .*bad\.gguf: .*llama: magic is wrong"):
        async with open_local_server(LocalWeights("bad", str(tmp_path / "bad.gguf"), 8)):
            pass


async def test_a_missing_engine_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "find_spec", find_nothing)
    with pytest.raises(WeightsError, match=r"not installed: pip install 'indus-deck\[local\]'"):
        async with open_local_server(LocalWeights("tiny", "tiny.gguf", 8)):
            pass


@pytest.mark.process
@pytest.mark.usefixtures("engine")
def test_a_session_serves_a_file_of_weights_itself(
    tmp_path: Path, model: ModelServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    setup = SessionSetup(tmp_path, model)
    model.script[:] = [says("from this machine")]
    code = setup.run_in_process(monkeypatch, model=f"local:{tmp_path / 'tiny.gguf'}")
    out, err = capfd.readouterr()
    assert (code, out.strip()) == (0, "from this machine")
    (request,) = model.requests
    key = json.loads((tmp_path / "tiny.gguf.seen").read_text())[1][0]
    assert model.headers[0]["authorization"] == f"Bearer {key}"
    names = [tool["function"]["name"] for tool in request["tools"]]
    assert names[:3] == ["find_tools", "describe_tools", "call_tool"]
    assert sorted(names[3:]) == ["bash", "edit", "grep", "ls", "read", "task", "write"]
    assert "More tools are not listed (bg-process, " in to_text(request["messages"][0])
    assert "left out" not in err


# -- the choice ---------------------------------------------------------------------------------


async def test_a_missing_engine_and_missing_weights_are_named_with_their_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "find_spec", find_nothing)
    with pytest.raises(NoModelError) as refused:
        await choose_model(Invocation(cwd=str(tmp_path), model="local"), {})
    assert str(refused.value) == (
        "local:qwen2.5-coder-1.5b cannot run: its engine is not installed (pip install 'indus-deck[local]'); "
        "its weights are not here (indus models fetch: 1.1 GB, once)"
    )
    monkeypatch.setattr(server, "find_spec", find_something)
    with pytest.raises(NoModelError, match=r"local:absent\.gguf cannot run: there is no file '/"):
        await choose_model(Invocation(cwd=str(tmp_path), model="local:absent.gguf"), {})


async def test_the_name_local_at_an_address_is_a_model_of_that_server(tmp_path: Path) -> None:
    invocation = Invocation(cwd=str(tmp_path), model="local", base_url="http://127.0.0.1:9/v1")
    choice = await choose_model(invocation, {})
    assert (choice.api, choice.name, choice.weights) == ("compatible", "local", None)


async def test_weights_in_a_file_have_the_window_that_the_person_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "find_spec", find_something)
    (tmp_path / "a.gguf").write_text("")
    choice = await choose_model(Invocation(cwd=str(tmp_path), model="local:a.gguf", context_window=100), {})
    assert (choice.label, choice.weights, choice.context_window) == ("local:a.gguf", str(tmp_path / "a.gguf"), 100)
    other = await choose_model(Invocation(cwd=str(tmp_path), model="local:./a.gguf"), {})
    assert choice.provider != other.provider, "a file of a project names no other weights"
