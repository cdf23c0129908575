"""Choice of the model."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.model_server import model_server

from induscode.conversations import models
from induscode.conversations.models import (
    ANTHROPIC_DEFAULT,
    OPENAI_DEFAULT,
    InvalidAddressError,
    ModelChoice,
    NoModelError,
    choose_model,
)
from induscode.launch.invocation import Invocation

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.anyio

A, K, OWN = "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "INDUS_API_KEY"
URL = "http://127.0.0.1:9/v1"


def asked(model: str | None = None, base_url: str | None = None) -> Invocation:
    return Invocation(cwd="/", model=model, base_url=base_url)


@pytest.mark.parametrize(
    ("model", "url", "environ", "choice"),
    [
        ("anthropic:x", None, {A: "a"}, ModelChoice("anthropic", "x", None, "a")),
        ("anthropic:x", None, {A: "a", "ANTHROPIC_BASE_URL": URL}, ModelChoice("anthropic", "x", URL, "a")),
        ("anthropic:x", URL, {A: "a", OWN: "o"}, ModelChoice("anthropic", "x", URL, "o")),
        ("openai:x", None, {K: "k\n"}, ModelChoice("openai", "x", None, "k")),
        ("openai:x", None, {K: "k", "OPENAI_BASE_URL": URL}, ModelChoice("openai", "x", URL, "k")),
        ("openai:x", URL, {K: "k"}, ModelChoice("compatible", "x", URL, None)),
        ("qwen3:8b", URL, {}, ModelChoice("compatible", "qwen3:8b", URL, None)),
        ("x", URL, {K: "k", OWN: "o"}, ModelChoice("compatible", "x", URL, "o")),
        ("x", None, {K: "k", "OPENAI_BASE_URL": URL}, ModelChoice("compatible", "x", URL, "k")),
        (
            "gpt-5",
            None,
            {A: "a", K: "k"},
            ModelChoice("openai", "gpt-5", None, "k", "--model gpt-5 means openai:gpt-5"),
        ),
        (
            "claude-x",
            None,
            {A: "a"},
            ModelChoice("anthropic", "claude-x", None, "a", "--model claude-x means anthropic:claude-x"),
        ),
        (
            "o3-mini",
            None,
            {K: "k"},
            ModelChoice("openai", "o3-mini", None, "k", "--model o3-mini means openai:o3-mini"),
        ),
        ("gpt-5", URL, {OWN: "o"}, ModelChoice("compatible", "gpt-5", URL, "o")),
        (None, None, {A: "a", K: "k"}, ModelChoice("anthropic", ANTHROPIC_DEFAULT, None, "a")),
        (None, None, {K: "k"}, ModelChoice("openai", OPENAI_DEFAULT, None, "k")),
    ],
)
async def test_model_is_chosen_by_flag_then_by_key(
    model: str | None, url: str | None, environ: Mapping[str, str], choice: ModelChoice
) -> None:
    """A provider's key never goes to an address from a flag."""
    found = await choose_model(asked(model, url), environ)
    assert replace(found, context_window=None) == choice


@pytest.mark.parametrize(
    ("model", "url", "environ", "said"),
    [
        ("anthropic:x", None, {K: "k"}, A),
        ("openai:x", None, {"ANTHROPIC_BASE_URL": URL}, K),
        ("x", None, {K: "k"}, "whose model is it"),
        ("gpt-oss:20b", None, {K: "k"}, "whose model is it"),
        ("openai:x", None, {K: "k\u00e9"}, "no key has"),
        ("openai:x", None, {K: "k\nX-Header: y"}, "no key has"),
        ("x:y", None, {}, "--base-url"),
        ("local", None, {K: "k"}, "no longer runs models itself"),
        ("local:a.gguf", None, {}, "Ollama"),
        (None, URL, {}, "name one with --model"),
        (None, "https://127.0.0.1:9/v1", {}, "name one with --model"),
    ],
)
async def test_error_without_a_model_names_the_remedy(
    model: str | None, url: str | None, environ: Mapping[str, str], said: str
) -> None:
    with pytest.raises(NoModelError, match=said):
        await choose_model(asked(model, url), environ)


@pytest.mark.parametrize(
    "address",
    [
        "localhost:9",
        "http://[",
        "ftp://x",
        "http://",
        "http://two words/v1",
        "http://127.0.0.1:99999/v1",
        "http://" + "x" * 70 + "/v1",
        "http://a\n/v1",
    ],
)
async def test_invalid_address_is_refused_before_any_request(address: str) -> None:
    with pytest.raises(InvalidAddressError, match="is not a server address"):
        await choose_model(asked("x", address), {})
    with pytest.raises(InvalidAddressError):
        await choose_model(asked("anthropic:x"), {A: "a", "ANTHROPIC_BASE_URL": address})


async def test_key_is_absent_from_representations() -> None:
    choice = await choose_model(asked("openai:x"), {K: "sk-canary"})
    assert "sk-canary" not in f"{choice!r} {choice} {choice.label}"


async def test_without_a_key_a_local_server_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = models._probe_server
    with socket.create_server(("127.0.0.1", 0)) as silent, model_server() as server:
        ports = (silent.getsockname()[1], 9, int(server.url.rpartition(":")[2]))

        async def probe_in_time(address: str, name: str | None = None, **_: float) -> Any:
            """Give up the silent one at once, and wait for the other even on a busy machine."""
            return await probe(address, name, limit_s=0.01 if str(ports[0]) in address else 20.0)

        monkeypatch.setattr(models, "_probe_server", probe_in_time)
        choice = await choose_model(asked(), {}, ports)
    assert (choice.api, choice.name) == ("compatible", "local-model")
    assert choice.base_url == f"{server.url}/v1"
    assert "no key is set" in choice.note
    assert choice.label == "local-model"


async def test_model_is_read_from_the_server_at_base_url() -> None:
    with model_server() as server:
        choice = await choose_model(asked(None, f"{server.url}/v1"), {})
        assert choice.name == "local-model"
        with pytest.raises(NoModelError):
            await choose_model(asked(None, f"{server.url}/nothing"), {})


@pytest.mark.parametrize(
    ("facts", "window"),
    [
        ({"max_model_len": 8_192}, 8_192),
        ({"context_length": 131_072}, 131_072),
        ({"max_context_length": 4_096}, 4_096),
        ({"meta": {"n_ctx": 2_048, "n_ctx_train": 131_072}}, 2_048),
        ({"meta": {"n_ctx_train": 131_072}}, None),
        ({"context_window": True, "max_model_len": "8k"}, None),
        ({"meta": 5, "n_ctx": -1}, None),
        ({}, None),
    ],
)
async def test_finding_c9_context_window_is_read_from_the_server(
    facts: dict[str, Any], window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "_PORT_PROBE_S", 20.0)
    with model_server() as server:
        server.facts.update(facts)
        url, port = f"{server.url}/v1", int(server.url.rpartition(":")[2])
        named = await choose_model(asked("local-model", url), {})
        unnamed = await choose_model(asked(None, url), {})
        local = await choose_model(asked(), {}, (port,))
        other = await choose_model(asked("another", url), {})
        told = await choose_model(replace(asked("local-model", url), context_window=7), {})
    assert [one.context_window for one in (named, unnamed, local)] == [window] * 3
    assert (other.context_window, told.context_window) == (None, 7)


async def test_server_at_base_url_has_more_time_than_a_port_that_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_PORT_PROBE_S", 0.0)
    with model_server() as server:
        assert (await choose_model(asked(None, f"{server.url}/v1"), {})).name == "local-model"
        with pytest.raises(NoModelError):
            await choose_model(asked(), {}, (int(server.url.rpartition(":")[2]),))


async def test_message_without_any_model_names_three_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_PORT_PROBE_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(NoModelError) as raised:
            await choose_model(asked(), {}, (silent.getsockname()[1], 9))
    said = str(raised.value)
    assert "ANTHROPIC_API_KEY" in said
    assert "ollama serve" in said
    assert "--base-url" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("model", "window"), [("claude-sonnet-4-5", 200_000), ("gpt-5.1", 400_000), ("o3", 200_000), ("openai:new", None)]
)
async def test_windows_of_known_models_are_known(model: str, window: int | None) -> None:
    assert (await choose_model(asked(model), {A: "a", K: "k"})).context_window == window
    told = await choose_model(replace(asked(model), context_window=7), {A: "a", K: "k"})
    assert told.context_window == 7


async def test_window_of_a_llama_server_is_read_from_its_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_PORT_PROBE_S", 20.0)
    with model_server() as server:
        server.props.update({"n_ctx": 8192})
        assert (await choose_model(asked("local-model", f"{server.url}/v1"), {})).context_window == 8192
