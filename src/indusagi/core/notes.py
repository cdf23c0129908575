"""Note: a value that says something was skipped, replaced or left out. It accompanies a result and is never raised."""

from indusagi.core.records import record


@record
class Note:
    """What happened to `owner`, and what to do about it."""

    owner: str
    """A tool, a server, or a file with its row."""
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        tail = f" ({self.remedy})" if self.remedy else ""
        return f"{self.owner}: {self.message}{tail}"
