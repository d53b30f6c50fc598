"""A checker of our HTML that shares no code with the renderer: what is not on its lists is a fault."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Final
from urllib.parse import urlsplit

_VOID: Final = {"br", "hr"}
_BLOCKS: Final = {
    "div",
    "p",
    "ul",
    "ol",
    "li",
    "blockquote",
    "pre",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
} | _VOID
_TAGS: Final = _BLOCKS | {"a", "span", "strong", "em", "s", "sup", "code"}
_ATTRIBUTES: Final = {
    "class": re.compile("vane mathjax_ignore tex2jax_ignore"),
    "style": re.compile(r"(?:[a-z-]+:[a-z0-9 #%.,()-]+)(?:;[a-z-]+:[a-z0-9 #%.,()-]+)*"),
    "href": re.compile(r"https?://[a-z0-9._-]+(?::[0-9]+)?(?:[/?#][!#-;=?-Z\[\]_a-z~|]*)?"),
    "rel": re.compile("noopener noreferrer nofollow"),
    "target": re.compile("_blank"),
    "title": re.compile(".+"),
    "dir": re.compile("auto"),
    "role": re.compile("group|note|heading"),
    "aria-level": re.compile("[3-6]"),
    "aria-label": re.compile("Error|Sources|Notes"),
    "start": re.compile("[0-9]{1,9}"),
    "value": re.compile("[0-9]{1,9}"),
}
UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    "\ud800-\udfff\ufff9-\ufffc\U000e0000-\U000e0fff]"
)


class StrictHtml(HTMLParser):
    """Parses HTML; `faults` says what must not be, `words` holds the words shown."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.links: list[tuple[str, str]] = []  # address and text
        self.titles: list[str] = []
        self.styles: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self._tags = 0
        self.feed(source)
        self.close()
        self._expect(not self._open, f"left open: {self._open}")
        self._expect(source.count("<") == self._tags, "a < that begins no tag")
        self._expect(source.count(">") == self._tags, "a > that ends no tag")
        self._expect(not UNSEEN.search(source), "an unseen character")

    @property
    def words(self) -> list[str]:
        """The words a reader sees."""
        return re.findall(r"\w+", self.text)

    def _expect(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tags += 1
        self._expect(tag in _TAGS, f"tag {tag}")
        self._expect(len(dict(attrs)) == len(attrs), f"an attribute twice in {tag}")
        for name, value in attrs:
            allowed = _ATTRIBUTES.get(name)
            self._expect(bool(allowed and allowed.fullmatch(value or "")), f"{name}={value!r} in {tag}")
            self._note(name, value or "")
        if tag == "a":
            self._expect({"href", "rel", "target"} <= dict(attrs).keys(), "a link without rel or target")
        self._separate(tag)
        if tag not in _VOID:
            self._open.append(tag)
        self._expect(len(self._open) < 64, "tags nested deeper than any browser needs")

    def _note(self, name: str, value: str) -> None:
        if name == "href":
            parts = urlsplit(value)
            self._expect(parts.username is None and parts.hostname is not None, f"address {value!r}")
            self.links.append((value, ""))
        elif name == "title":
            self.titles.append(value)
        elif name == "style":
            self._expect("url" not in value and "expression" not in value, f"style {value!r}")
            self.styles.add(value)

    def handle_endtag(self, tag: str) -> None:
        self._tags += 1
        self._expect(bool(self._open) and self._open.pop() == tag, f"</{tag}> closes nothing")
        self._separate(tag)

    def _separate(self, tag: str) -> None:
        """Part words as a reader sees them parted: by blocks, and by the other face of code."""
        if tag in _BLOCKS:
            self.text += "\n"
        elif tag == "code" and "pre" not in self._open:
            self.text += "`"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.faults.append(f"<{tag}/>")

    def handle_data(self, data: str) -> None:
        self.text += data
        if "a" in self._open and self.links:
            self.links[-1] = (self.links[-1][0], self.links[-1][1] + data)
        if "code" not in self._open:
            self._expect(not re.search(r"[$\\]", data) or len(data) == 1, f"TeX in {data!r}")

    def handle_comment(self, data: str) -> None:
        self.faults.append(f"comment {data!r}")

    def handle_decl(self, decl: str) -> None:
        self.faults.append(f"declaration {decl!r}")

    def unknown_decl(self, data: str) -> None:
        self.faults.append(f"declaration {data!r}")

    def handle_pi(self, data: str) -> None:
        self.faults.append(f"instruction {data!r}")
