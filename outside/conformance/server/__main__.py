"""`python -m outside.conformance.server`: over stdio, or with `--http PORT` over HTTP."""

from __future__ import annotations

import argparse

import anyio

from outside.conformance.server.serving import Subject


class _Options(argparse.Namespace):
    http: int | None


def main() -> None:
    """Serve until told to end."""
    parser = argparse.ArgumentParser(prog="outside.conformance.server", description=__doc__)
    parser.add_argument("--http", metavar="PORT", type=int, help="serve http://127.0.0.1:PORT/mcp")
    port = parser.parse_args(namespace=_Options()).http
    subject = Subject()
    if port is None:
        anyio.run(subject.over_stdio)
    else:
        anyio.run(subject.over_http, port)


if __name__ == "__main__":
    main()
