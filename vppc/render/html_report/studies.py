"""The reports of what ``vppc compare --json`` and ``vppc tune --json`` have printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NotRequired, TypeAlias

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from vppc.errors import InputError
from vppc.render.html_report import charts
from vppc.render.html_report.page import Page, Section, html_table, origin, paragraph
from vppc.render.html_report.scheme import WORK
from vppc.render.report import EFFICIENCY
from vppc.render.tables import count, percent, seconds, signed_percent
from vppc.validation import OPEN, Count, Index, Seconds, validate


@with_config(OPEN)
class RankDocument(TypedDict):
    """As each rank spends the makespan."""

    rank: int
    compute: Seconds
    collective: Seconds
    exposed_transfer: Seconds
    launch_stall: Seconds
    free: Seconds
    bubble_ratio: float


Ranks: TypeAlias = Annotated[list[RankDocument], Field(min_length=1)]
# JSON has lists only
Range: TypeAlias = Annotated[tuple[Index, Index], Field(strict=False)]


@with_config(OPEN)
class OutcomeDocument(TypedDict):
    """A strategy at one chunk size, or why it was refused."""

    chunk_size: Count
    refused: NotRequired[str]
    chunks: NotRequired[int]
    makespan: NotRequired[Seconds]
    throughput: NotRequired[float]
    efficiency: NotRequired[float]
    ranks: NotRequired[Ranks]


@with_config(OPEN)
class RowDocument(TypedDict):
    """A contestant at one cost and queue of prompts."""

    cost: str
    queue: NotRequired[str]
    tokens: Count
    prompts: Count
    contestant: str
    best_chunk_size: Count | None
    outcomes: list[OutcomeDocument]


@with_config(OPEN)
class ComparisonDocument(TypedDict):
    """What ``vppc compare --json`` prints."""

    pp: Count
    rows: list[RowDocument]
    provenance: NotRequired[dict[str, str]]


@with_config(OPEN)
class TunedDocument(TypedDict):
    """The best schedule of a placement."""

    placement: str
    vp: Count
    chunks: list[Count]
    layers: list[Range]
    bound_of_any_chunking: Seconds
    gap_to_any_chunking: float
    makespan: Seconds
    efficiency: float
    lower_bound: Seconds
    ranks: Ranks


@with_config(OPEN)
class TuningDocument(TypedDict):
    """What ``vppc tune --json`` prints."""

    pp: Count
    placements: list[TunedDocument]
    advice: list[str]
    provenance: NotRequired[dict[str, str]]


_COMPARISON: TypeAdapter[ComparisonDocument] = TypeAdapter(ComparisonDocument)
_TUNING: TypeAdapter[TuningDocument] = TypeAdapter(TuningDocument)


def study_page(document: Mapping[str, Any], file: str, title: str, provenance: Mapping[str, str]) -> Page | None:
    """The page of a comparison or a tuning, whichever the document is; None where it is neither.

    Raises InputError for a document that is one of them, but wrong.
    """
    if "rows" in document:
        return _comparison(validate(_COMPARISON, document, file=file), file, title, provenance)
    if "placements" in document:
        return _tuning(validate(_TUNING, document, file=file), file, title, provenance)
    return None


def _comparison(document: ComparisonDocument, file: str, title: str, provenance: Mapping[str, str]) -> Page:
    rows = document["rows"]
    if not rows:
        raise InputError("compares nothing", file=file, place="rows")
    drawn: dict[str, charts.Chart] = {}
    contests = list(_contests(rows))
    for number, mine in enumerate(contests):
        if priced := [row for row in mine if _best(row) is not None]:
            each = {row["contestant"]: _points(row) for row in priced}
            drawn[f"sizes-{number}"] = charts.lines("makespan by chunk size", "tokens a chunk", "seconds", each)
            heading = "the critical rank at each one's best chunk size"
            drawn[f"work-{number}"] = charts.bars(heading, _critical_ranks(priced))
    head, scripts, places = charts.embedded(drawn) if drawn else ("", "", {})
    made = []
    for number, mine in enumerate(contests):
        pair = "".join(f"<div>{places[key]}</div>" for key in (f"sizes-{number}", f"work-{number}") if key in places)
        name = f"{_queue(mine[0])}, {mine[0]['cost'] or 'unnamed costs'}"
        made.append(Section(name, f'<div class="pair">{pair}</div>{_bests(mine)}'))
    facts = {
        "ranks": count(document["pp"]),
        "strategies": count(len({row["contestant"] for row in rows})),
        "queues": count(len({_queue(row) for row in rows})),
    }
    sources = {**origin("comparison", document.get("provenance", {})), **provenance}
    lead = "Strategies at many chunk sizes, each schedule compiled, proven and priced."
    return Page(title, lead, facts, made, head, scripts, sources)


def _tuning(document: TuningDocument, file: str, title: str, provenance: Mapping[str, str]) -> Page:
    placements = document["placements"]
    if not placements:
        raise InputError("has found nothing", file=file, place="placements")
    best = placements[0]
    names = [f"{each['placement']}, {each['vp']} a rank" for each in placements]
    bound = [each["bound_of_any_chunking"] for each in placements]
    above = [max(0.0, each["makespan"] - each["bound_of_any_chunking"]) for each in placements]
    bars = charts.Bars(
        names,
        {"bound of any chunking": bound, "above it": above},
        {"bound of any chunking": WORK["compute"], "above it": WORK["launch stall"]},
    )
    head, scripts, places = charts.embedded(
        {
            "placements": charts.bars("makespan of the best schedule of each placement", bars),
            "chunks": charts.sizes(
                best["chunks"], [0] * len(best["chunks"]), [count(tokens, "token") for tokens in best["chunks"]]
            ),
            "work": charts.bars("the makespan as each rank spends it", _work(best["ranks"])),
        }
    )
    table = html_table(
        ("placement", "chunks", "makespan", "efficiency", "any order of these chunks", "any chunking", "ahead at most"),
        (
            (
                name,
                count(len(each["chunks"])),
                seconds(each["makespan"]),
                percent(each["efficiency"]),
                seconds(each["lower_bound"]),
                seconds(each["bound_of_any_chunking"]),
                percent(each["gap_to_any_chunking"]),
            )
            for name, each in zip(names, placements, strict=True)
        ),
    )
    layers = " ".join(str(last - first) for first, last in best["layers"])
    sections = [
        Section("Placements", places["placements"] + table + paragraph(EFFICIENCY)),
        Section("The best", f"{places['chunks']}{paragraph(f'Layers a stage: {layers}')}"),
        Section("Where its time goes", places["work"]),
    ]
    if document["advice"]:
        sections.append(Section("Advice", "".join(map(paragraph, document["advice"]))))
    facts = {
        "makespan": seconds(best["makespan"]),
        "efficiency": percent(best["efficiency"]),
        "any other chunking ahead by at most": percent(best["gap_to_any_chunking"]),
        "chunks": count(len(best["chunks"])),
    }
    lead = f"Tuned for {count(document['pp'], 'rank')}; the best first."
    sources = {**origin("tuning", document.get("provenance", {})), **provenance}
    return Page(title, lead, facts, sections, head, scripts, sources)


def _contests(rows: Iterable[RowDocument]) -> Iterator[list[RowDocument]]:
    """The rows of one cost and queue after those of another. Two of one name are told apart by who comes again."""
    mine: list[RowDocument] = []
    for row in rows:
        same = bool(mine) and (mine[0]["cost"], _queue(mine[0])) == (row["cost"], _queue(row))
        if mine and (not same or any(each["contestant"] == row["contestant"] for each in mine)):
            yield mine
            mine = []
        mine.append(row)
    yield mine


def _queue(row: RowDocument) -> str:
    if row["prompts"] == 1:
        return f"one prompt of {count(row['tokens'], 'token')}"
    name = f"{row['queue']}: " if "queue" in row else ""
    return f"{name}{count(row['prompts'], 'prompt')} of up to {count(row['tokens'], 'token')}"


def _points(row: RowDocument) -> list[tuple[float, float]]:
    return [(each["chunk_size"], each["makespan"]) for each in row["outcomes"] if "makespan" in each]


def _best(row: RowDocument) -> OutcomeDocument | None:
    priced = [each for each in row["outcomes"] if "makespan" in each and "ranks" in each]
    return min(priced, key=lambda each: each["makespan"], default=None)


def _critical_ranks(rows: Sequence[RowDocument]) -> charts.Bars:
    """Of each contestant at its best, the rank with the most work."""
    named = [(row["contestant"], best) for row in rows if (best := _best(row)) is not None]
    critical = [max(best["ranks"], key=lambda rank: rank["compute"] + rank["collective"]) for _, best in named]
    bars = _work(critical)
    return charts.Bars([name for name, _ in named], bars.parts, bars.colors)


def _work(ranks: Sequence[RankDocument]) -> charts.Bars:
    return charts.work_bars(
        [f"rank {rank['rank']}" for rank in ranks],
        [
            (rank["compute"], rank["collective"], rank["exposed_transfer"], rank["launch_stall"], rank["free"])
            for rank in ranks
        ],
    )


def _bests(rows: Sequence[RowDocument]) -> str:
    first = next((best for row in rows if (best := _best(row)) is not None), None)
    lines = []
    for row in rows:
        best = _best(row)
        if best is None or first is None:
            lines.append((row["contestant"], "refused", "", "", "", ""))
            continue
        gain = first["makespan"] / best["makespan"] - 1 if best["makespan"] else 0.0
        lines.append(
            (
                row["contestant"],
                count(best["chunk_size"]),
                count(best.get("chunks", 0)),
                seconds(best["makespan"]),
                percent(best.get("efficiency", 0.0)),
                signed_percent(gain),
            )
        )
    headers = ("strategy", "best chunk size", "chunks", "makespan", "efficiency", "throughput to the first")
    refused = dict.fromkeys(
        f"{row['contestant']} is refused: {outcome['refused']}"
        for row in rows
        for outcome in row["outcomes"]
        if _best(row) is None and "refused" in outcome
    )
    return html_table(headers, lines) + paragraph(EFFICIENCY) + "".join(map(paragraph, refused))
