"""The entry point of `indus`, `indusr`, `indusagir` and `python -m induscode`: one program.

`--version` doesn't load the program. Errors print one line and exit with 2 (bad input), 1 (failure) or 128 + n
(signal n, https://man7.org/linux/man-pages/man7/signal.7.html). A closed standard output counts as SIGPIPE. An
unwritable standard error doesn't change the exit code.
"""

import atexit
import gc
import os
import resource
import signal
import sys
from io import TextIOWrapper

import indusagi
import induscode

_FAILED = 1
_DISTRIBUTION = "indus-deck"
_OTHERS = ("indusagi", "induscode")
"""Other distributions on PyPI that install packages and commands of the same names."""
_REMEDY = "pip uninstall indusagi induscode indus-deck, then install indus-deck into an environment of its own"


def find_replaced_package() -> str | None:
    """Return the name of one of our packages that another distribution replaced, or `None`."""
    for package in (indusagi, induscode):
        if getattr(package, "DISTRIBUTION", None) != _DISTRIBUTION:
            return package.__name__
    return None


def find_other_distributions() -> list[str]:
    """List conflicting distributions installed next to our packages, by their metadata directories."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    installed = [name.partition("-")[0] for name in names if name.endswith((".dist-info", ".egg-info"))]
    return sorted(name for name in installed if name.lower() in _OTHERS)


# Check this before importing anything else: other modules may be replaced too, and without this message all the user
# would see is an ImportError.
_REPLACED = find_replaced_package()
if _REPLACED is not None:
    sys.exit(
        f"indus: the package {_REPLACED!r} is not the one of indus-deck: another distribution "
        f"(indusagi or induscode of PyPI) has replaced its files. {_REMEDY}."
    )

from indusagi import __version__  # noqa: E402 — after the check
from induscode.cli.terminal import print_line, print_status, redirect_to_null  # noqa: E402 — after the check

_STANDARD_OUTPUT = 1
_FIRST_COLLECTION = 50_000
"""New objects before the first garbage collection; a listing command creates fewer."""


def main() -> int:
    """Run the program with this process's arguments and return its exit code."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                # Escape characters that the terminal's encoding lacks.
                stream.reconfigure(errors="backslashreplace")
        others = find_other_distributions()
        if others:
            problem = f"{' and '.join(others)} of PyPI is installed beside indus-deck and has files of the same names"
            print_status(f"{problem}: whichever was installed last has replaced the other's. {_REMEDY}")
        code = _run(sys.argv[1:])
        # It's None if it was closed at startup.
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader, such as `head`, has exited
        redirect_to_null(_STANDARD_OUTPUT)
        return 128 + signal.SIGPIPE
    except OSError as exc:
        redirect_to_null(_STANDARD_OUTPUT)
        message = exc.strerror or str(exc)
        print_status(f"{exc.filename}: {message}" if exc.filename else message)
        return _FAILED
    return code


def defer_collection() -> None:
    """Delay the first garbage collection, and skip the one at exit.

    During imports the collector would run a hundred times and find nothing. Its first run restores the usual
    thresholds, so that a longer-running program (a gateway, a session) collects as always. At exit we freeze all
    objects (https://docs.python.org/3/library/gc.html#gc.freeze): their memory goes with the process.
    """
    usual = gc.get_threshold()

    def restore(_phase: str, _info: dict[str, int]) -> None:
        gc.set_threshold(*usual)
        gc.callbacks.remove(restore)

    gc.callbacks.append(restore)
    gc.set_threshold(_FIRST_COLLECTION, *usual[1:])
    atexit.register(gc.freeze)


def _run(arguments: list[str]) -> int:
    if arguments in (["--version"], ["-V"]):
        print_line(f"indus {__version__}")
        return 0
    defer_collection()
    # Our memory and that of servers has secrets: a crash writes none of it to disk. Servers inherit the limit.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    from induscode.commands.program import run  # noqa: PLC0415 — imports click, which `--version` does not need

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
