"""A page of HTML that needs nothing else: sections with text, tables and charts, and where it all comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from vppc.render.html_report.scheme import STYLE

Rows = Iterable[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it, as HTML."""

    title: str
    body: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page: a ``lead`` under its title, ``facts`` in large letters, sections; ``head`` and ``scripts`` of charts."""

    title: str
    lead: str
    facts: Mapping[str, str]
    sections: Sequence[Section]
    head: str
    scripts: str
    provenance: Mapping[str, str]

    def html(self) -> Iterator[str]:
        """The page, in pieces."""
        yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        yield f"<title>{escape(self.title)}</title>\n"
        yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        yield f"<style>{_STYLE}</style>\n{self.head}\n</head>\n<body>\n<main>\n"
        yield f"<h1>{escape(self.title)}</h1>\n<p>{escape(self.lead)}</p>\n"
        cards = (f"<div><b>{escape(value)}</b>{escape(name)}</div>" for name, value in self.facts.items())
        yield f'<div class="facts">{"".join(cards)}</div>\n'
        for section in self.sections:
            yield f"<section>\n<h2>{escape(section.title)}</h2>\n{section.body}\n</section>\n"
        rows = html_table(("", ""), ([name, value] for name, value in self.provenance.items()), "<<")
        yield f"<section>\n<h2>Where this comes from</h2>\n{rows}\n</section>\n"
        yield f"</main>\n{self.scripts}\n</body>\n</html>\n"


def origin(what: str, said: Mapping[str, object]) -> dict[str, str]:
    """What is said of where something comes from, each under a name that says of ``what`` it is said."""
    return {f"{what}'s {key}": str(value) for key, value in said.items()}


def paragraph(text: str) -> str:
    """Text as a paragraph, its lines kept."""
    return f"<p>{escape(text).replace(chr(10), '<br>')}</p>"


def html_table(headers: Sequence[str], rows: Rows, align: str = "<") -> str:
    """Rows of text under their headers. ``align`` has one of ``<`` and ``>`` a column; others are right-aligned."""
    sides = align.ljust(len(headers), ">")

    def row(cells: Sequence[str], tag: str) -> str:
        kinds = ("" if side == "<" else ' class="n"' for side in sides)
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=False))

    head = f"<thead><tr>{row(headers, 'th')}</tr></thead>" if any(headers) else ""
    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in rows)
    return f'<div class="table"><table>{head}<tbody>{body}</tbody></table></div>'


_STYLE = f"""{STYLE}
body{{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,'DejaVu Sans',Verdana,Arial,sans-serif}}
main{{max-width:1280px;margin:0 auto;padding:1.5rem}}
h1{{font-size:1.5rem;margin:0}}h2{{font-size:1.1rem;margin:0 0 .6rem}}p{{margin:.4rem 0}}
section,.facts div{{background:var(--section);border:1px solid var(--edge);border-radius:8px}}
section{{padding:1rem 1.2rem;margin:1rem 0;overflow-x:auto}}
.facts{{display:flex;flex-wrap:wrap;gap:.8rem;margin:1rem 0}}
.facts div{{padding:.6rem 1rem;color:var(--faint);font-size:.85rem}}
.facts b{{display:block;font-size:1.35rem;color:var(--ink)}}
.table{{overflow-x:auto}}table{{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.88rem}}
th,td{{padding:.2rem .9rem .2rem 0;text-align:left;vertical-align:top}}th{{color:var(--faint);font-weight:600}}
tbody tr{{border-top:1px solid var(--line)}}.n{{text-align:right;white-space:nowrap}}
.pair{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:1rem}}
details{{margin:.4rem 0}}pre{{overflow-x:auto;font-size:.8rem}}
@media print{{section{{break-inside:avoid;border:none;padding:0}}}}
"""
