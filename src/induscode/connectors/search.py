"""Search of operations by what they do: each operation is an item of the index that tools are found by.

Verbs that people use for the method of an operation are keywords of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from induscode.search.index import ToolIndex
from induscode.search.items import SearchItem, build_item

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from induscode.connectors.operations import OperationSpec

_VERBS: Final = {
    "GET": "get list show read find fetch view look download check",
    "HEAD": "check exists",
    "POST": "create add new make open send start post",
    "PUT": "set put replace update change",
    "PATCH": "update change edit modify patch",
    "DELETE": "delete remove drop cancel",
}
"""What people call the methods."""
_LONGEST_DESCRIPTION: Final = 600


class OperationIndex:
    """An index of operations; it is built once and never changes."""

    def __init__(self, operations: Iterable[OperationSpec]) -> None:
        self._operations = {(operation.connector, operation.slug): operation for operation in operations}
        self._index = ToolIndex(map(build_operation_item, self._operations.values()))

    def search(self, query: str, limit: int, connectors: Sequence[str] = ()) -> list[OperationSpec]:
        """Return the operations that fit a query best, the best one first."""
        hits = self._index.search([query], limit=len(self._operations)).hits
        found = (hit.item for hit in hits if not connectors or hit.item.server in connectors)
        return [self._operations[item.server, item.qualified_name] for item in found][:limit]


def build_operation_item(operation: OperationSpec) -> SearchItem:
    """Build the item of an operation."""
    keywords = " ".join((*operation.tags, operation.path, _VERBS.get(operation.method, "")))
    return build_item(
        "action",
        operation.connector,
        operation.id,
        operation.slug,
        title=operation.summary,
        description=operation.description[:_LONGEST_DESCRIPTION],
        keywords=keywords,
    )
