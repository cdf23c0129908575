"""MkDocs hook: files outside `docs/` become pages, and relative links lead to these pages.

The pages link to each other as GitHub shows them. The hook maps every relative link from a path in the
repository to a page of the site. A link to a repository file without a page becomes plain text; a link to
a missing file stays as it is, and the strict build reports it.
"""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples/index.md",
    "examples/gateway/README.md": "examples/gateway.md",
}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def find_page(path):
    """Return the page of a repository path, or None."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/").removesuffix("/") or None
    if path.startswith("examples/") and path.endswith((".py", ".json")):
        return f"{path}.md"
    return None


def rewrite_links(text, source, page):
    """Rewrite the relative links of `text`, which is `source` in the repository and `page` in the site."""

    def replace(match):
        label, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if not (ROOT / path).exists():
            return match.group()
        destination = find_page(path)
        if destination is None or (ROOT / path).is_dir():
            return label
        return f"[{label}]({os.path.relpath(destination, os.path.dirname(page) or '.')}{anchor})"

    return LINK.sub(replace, text)


def on_files(files, config):
    """Add the pages whose source is outside `docs/`."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=rewrite_links(text, source, page)))
    for path in sorted((ROOT / "examples").rglob("*")):
        source = path.relative_to(ROOT).as_posix()
        if path.suffix in {".py", ".json"} and "__pycache__" not in source:
            language = "python" if path.suffix == ".py" else "json"
            code = path.read_text(encoding="utf-8")
            text = f"# {path.name}\n\n```{language}\n{code}```\n"
            files.append(File.generated(config, f"{source}.md", content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrite the links of a page in `docs/`."""
    if page.file.generated_by is not None:
        return markdown
    return rewrite_links(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)
