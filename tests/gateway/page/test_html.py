"""HTML is escaped by construction."""

from __future__ import annotations

from html import escape
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from induscode.gateway.page.html import link_outside, render, table, tag


class Reader(HTMLParser):
    """Collects the texts, the attributes and the elements of a document, as a browser would see them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self.attributes: list[str] = []
        self.elements: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


VISIBLE = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mn")))


@given(VISIBLE)
def test_text_is_escaped_as_by_the_standard_library(text: str) -> None:
    assert tag("p", text, title=text) == f'<p title="{escape(text)}">{escape(text, quote=False)}</p>'


@given(VISIBLE, VISIBLE)
def test_any_text_stays_text(text: str, value: str) -> None:
    reader = Reader()
    reader.feed(tag("p", text, title=value))
    assert reader.elements == ["p"]
    assert "".join(reader.texts) == text
    assert reader.attributes == [value]


def test_markup_of_others_is_not_an_element() -> None:
    reader = Reader()
    reader.feed(table(("a",), [["<b>x</b>"]], caption="<i>y</i>"))
    assert {"b", "i"}.isdisjoint(reader.elements)


def test_invisible_characters_are_visible() -> None:
    assert render("a\u202eb") == "a&lt;U+202E&gt;b"


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "//example.org", "/\\example.org", "https://example.org", "data:text/html,x"]
)
def test_an_address_of_another_site_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not an address of this site"):
        tag("a", "x", href=url)


def test_only_an_address_of_the_web_leads_outside() -> None:
    assert 'rel="noopener noreferrer"' in link_outside("x", 'https://example.org/?"a')
    assert '"a' not in link_outside("x", 'https://example.org/?"a')
    with pytest.raises(ValueError, match="not an address of the web"):
        link_outside("x", "javascript:alert(1)")


def test_false_and_none_attributes_are_left_out() -> None:
    assert tag("input", disabled=False, required=True, value=None, type_="text") == '<input required type="text">'
