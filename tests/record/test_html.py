from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from bitworth.record.address import read, shown
from bitworth.record.pictures import draw
from bitworth.record.render_html import render_html
from bitworth.record.schema import Record

VOID = {"meta", "br", "link", "img", "hr", "input"}
NUMBER = re.compile(r"(?<![\w.])[-+±]?\d")


class Page(HTMLParser):
    """Checks that tags nest, and collects addressed and other text outside of picture and style."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.addressed: list[tuple[str, str]] = []
        self.other: list[str] = []
        self.links: list[str] = []
        self._address: str | None = None
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        names = ("src", "href", "xlink:href", "srcset", "action")
        self.links += [str(found[name]) for name in names if name in found]
        assert tag != "script"
        if tag in VOID:
            return
        self.open.append(tag)
        if "data-bw" in found:
            assert tag == "span"
            self._address, self._text = str(found["data-bw"]), ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "span" and self._address is not None:
            self.addressed.append((self._address, self._text))
            self._address = None

    def handle_data(self, data: str) -> None:
        if self._address is not None:
            self._text += data
        elif not {"svg", "style", "title"} & set(self.open):
            self.other.append(data)


@pytest.fixture(
    params=["record", "partial_record", "hostile_record", "rival_record"], scope="module"
)
def page(request: pytest.FixtureRequest) -> tuple[Record, str, Page]:
    record: Record = request.getfixturevalue(request.param)
    text = render_html(record, draw(record))
    parsed = Page()
    parsed.feed(text)
    parsed.close()
    return record, text, parsed


def test_tags_nest(page: tuple[Record, str, Page]) -> None:
    assert page[2].open == []


def test_values_are_what_their_addresses_say(page: tuple[Record, str, Page]) -> None:
    record, _, parsed = page
    assert len(parsed.addressed) > 100
    for address, text in parsed.addressed:
        assert text == shown(record, read(address))


def test_no_number_is_without_an_address(page: tuple[Record, str, Page]) -> None:
    assert [text for text in page[2].other if NUMBER.search(text)] == []


def test_page_needs_nothing_from_elsewhere(page: tuple[Record, str, Page]) -> None:
    _, text, parsed = page
    assert [link for link in parsed.links if not link.startswith("#")] == []
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    known = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert set(re.findall(r"https?://[^\s\"'<>)]+", text)) <= known


def test_page_is_readable_in_the_dark(page: tuple[Record, str, Page]) -> None:
    assert "prefers-color-scheme: dark" in page[1]


def test_names_cannot_become_mark_up(hostile_record: Record) -> None:
    text = render_html(hostile_record, draw(hostile_record))
    assert "<b>" not in text
    assert "\x1b" not in text
    assert "int8 all &lt;b&gt;|&amp;" in text


def test_rendering_twice_gives_the_same_bytes(partial_record: Record) -> None:
    assert render_html(partial_record, draw(partial_record)) == render_html(
        partial_record, draw(partial_record)
    )
