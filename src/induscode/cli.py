"""The entry point of the commands `indus`, `indusr` and `indusagir`: one program, three names.

It answers `--version` without loading anything, hands the rest to the program, and sees to it that
whatever ends it early is one line and an exit code: 2 for bad input, 1 for a failure, 128 + n for
signal n. A reader who leaves before the end counts as SIGPIPE. An error that cannot be told keeps
its code.
"""

import signal
import sys
from io import TextIOWrapper

from indusagi import __version__
from induscode.terminal import complain, drop, tell

_FAILED = 1
_STANDARD_OUTPUT = 1


def main() -> int:
    """Run the program with the arguments of this process and return its exit code."""
    try:
        _write_anything()
        code = _run(sys.argv[1:])
        _flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader left, as `head` does
        drop(_STANDARD_OUTPUT)
        return 128 + signal.SIGPIPE
    except OSError as exc:
        drop(_STANDARD_OUTPUT)
        complain(str(exc))
        return _FAILED
    return code


def _run(arguments: list[str]) -> int:
    if arguments in (["--version"], ["-V"]):
        tell(f"indus {__version__}")
        return 0
    if arguments[:1] == ["serve"]:
        from induscode.commands.serve_early import hear_early  # noqa: PLC0415 — for this alone

        hear_early()  # whoever starts a gateway may signal it while the rest is being loaded
    from induscode.program import run  # noqa: PLC0415 — brings click, which the version can spare

    return run(arguments)


def _write_anything() -> None:
    """Escape what the terminal's encoding lacks, rather than fail on it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    # Started with its output closed, Python has no standard output at all.
    if sys.stdout is not None:
        sys.stdout.flush()
