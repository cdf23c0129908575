"""PDF files and notebooks for tests, written by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject


def pdf(*pages: str) -> bytes:
    """Build a PDF whose pages have one line of text each, or none."""
    kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for index, text in enumerate(pages):
        content = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET" if text else ""
        objects += [
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * index} 0 R >>",
            f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        ]
    return _assemble(objects)


def _assemble(objects: Sequence[str]) -> bytes:
    out, places = b"%PDF-1.4\n", list[int]()
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode("latin-1")
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    start = len(out)
    size = len(objects) + 1
    out += f"xref\n0 {size}\n0000000000 65535 f \n{table}".encode()
    return out + f"trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n".encode()


def notebook(*cells: JsonObject) -> bytes:
    """Build a notebook of version 4 (https://nbformat.readthedocs.io/en/latest/format_description.html)."""
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": list(cells)}).encode()
