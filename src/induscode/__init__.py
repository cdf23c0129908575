"""The product: the command line, and what a coding session is made of.

`open_deck` and `open_deck_sync` give its tools to a program.
"""

DISTRIBUTION = "indus-deck"
"""Which distribution this package is from; another one on PyPI has a package of the same name."""


def __getattr__(name: str) -> object:
    """Load a public name when it is first used: the command line starts without them."""
    if name not in {"open_deck", "open_deck_sync"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from induscode import toolbox  # noqa: PLC0415 — loads the deck

    return getattr(toolbox, name)
