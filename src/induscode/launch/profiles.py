"""The names of the deck's profiles on the command line.

The API keeps the names AUTHORING and SURVEY. On the command line they read the wrong way round:
`authoring` only reads and `survey` may write. So the command line says `read-only` and `coding`,
and takes the older names as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Collection

PROFILES = {"read-only": "authoring", "coding": "survey", "all": "all", "none": None}
"""The name on the command line, and the value of the deck's `Profile`; None for no native tools."""

_OLDER = {"authoring": "read-only", "survey": "coding"}


class ProfileChoice(click.Choice[str]):
    """The choice of a profile; older names are taken for the new ones."""

    def __init__(self) -> None:
        super().__init__(tuple(PROFILES))

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Give the name of a profile."""
        return super().convert(_OLDER.get(value, value), param, ctx)


def profile_name(values: Collection[str]) -> str:
    """Name the smallest profile that has a card with these values; `all` for the app cards.

    The tools of servers belong to no profile: an empty text.
    """
    return next((name for name, value in PROFILES.items() if value in values), "")
