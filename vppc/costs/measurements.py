"""Measured times in CSV tables: our own forms, and two that others publish. The header says which it is.

===================================================  ===============================================================
columns                                              a line is
===================================================  ===============================================================
chunk_tokens, prefix_tokens, seconds                 a forward; also ``layers`` (how many, default 1) and ``kind``
tokens, seconds (or bytes, seconds)                  a transfer between two ranks
isl, step, latency, batch_size                       a context-attention module, milliseconds (aiconfigurator)
size, time_stats.send_recv.median                    a send with its receive, bytes and milliseconds (vidur)
===================================================  ===============================================================

The two of others hold many configurations in one table. Their other columns (tp_size, kv_cache_dtype, ..) must so
have one value each; ``select`` picks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vppc.costs.samples import Forward, Layers, Measurements, Transfer, forward
from vppc.errors import InputError
from vppc.inputs.table import Header, Row, read_table
from vppc.json_text import shown

MOST_BATCHED = 2**16
"""Prompts in one measured batch."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How tables are understood: the layers of the model, which rows (column -> value), and bytes a token.

    ``layers`` None: as many of one kind as a row of a table has at most. ``topk`` is for that case.
    """

    layers: Layers | None = None
    topk: int = 0
    select: Mapping[str, str] = field(default_factory=dict)
    bytes_per_token: float | None = None


@dataclass(frozen=True, slots=True)
class _Form:
    """A form of table: the columns it must have, how a row is read, and which columns may differ in value."""

    columns: tuple[str, ...]
    read: Callable[[Row, Reading], _Times | Transfer]
    free: frozenset[str] | None = None  # None: any


@dataclass(frozen=True, slots=True)
class _Times:
    """A row on forwards, before it is known which kinds of layers there are."""

    row: Row
    seconds: float
    parts: list[tuple[int, int]]
    layers: int
    kind: str | None


def read_tables(paths: Sequence[str], reading: Reading) -> Measurements:
    """All measurements in CSV files. Raises InputError with the line of what is wrong."""
    times: list[_Times] = []
    transfers: list[Transfer] = []
    selected: set[str] = set()
    for path in paths:
        header, rows = read_table(path)
        form = _form(header)
        chosen = {column: value for column, value in reading.select.items() if column in header.places}
        selected |= chosen.keys()
        before = len(times) + len(transfers)
        for row in _selected(rows, form, chosen):
            read = form.read(row, reading)
            if isinstance(read, Transfer):
                transfers.append(read)
            else:
                times.append(read)
        if len(times) + len(transfers) == before:
            raise InputError(
                "has no measurements" + (" of what --select picks" if chosen else ""),
                file=header.file,
                remedy="a line for each measurement",
            )
    for column in reading.select:
        if column not in selected:
            raise InputError(f"no table has a column {shown(column)}", place="--select", remedy="COLUMN=VALUE")
    layers = reading.layers or Layers.alike(max((each.layers for each in times), default=1), reading.topk)
    return Measurements(layers, tuple(_forward(each, layers) for each in times), tuple(transfers))


def _form(header: Header) -> _Form:
    for form in _FORMS:
        if set(form.columns) <= header.places.keys():
            return form
    known = "; or ".join(", ".join(form.columns) for form in _FORMS)
    raise InputError(
        f"the columns {', '.join(header.columns)} are none of a table that is known",
        file=header.file,
        place="line 1",
        remedy=f"columns {known}",
    )


def _selected(rows: Iterable[Row], form: _Form, chosen: Mapping[str, str]) -> Iterator[Row]:
    """The rows that ``chosen`` picks. Raises InputError where a column that describes the machine changes."""
    first: Row | None = None
    for row in rows:
        row.check_whole()
        if any(row.text(column) != value for column, value in chosen.items()):
            continue
        first = first or row
        if form.free is not None:
            for column in row.header.columns:
                if column not in form.free and row.text(column) != first.text(column):
                    raise row.error(
                        f"is {shown(row.text(column))}, but {shown(first.text(column))} in line {first.line}:"
                        " another configuration",
                        column,
                        f"pick one with --select {column}=VALUE",
                    )
        yield row


def _forward(times: _Times, layers: Layers) -> Forward:
    row = times.row
    if times.kind is None and len(layers.names) > 1:
        raise row.error(
            f"does not say of which kind of layers it is: {', '.join(layers.names)}", remedy='a column "kind"'
        )
    if times.kind is not None and times.kind not in layers.names:
        raise row.error(
            f"{shown(times.kind)} is none of the kinds of layers {', '.join(layers.names)}",
            "kind",
            "name the kinds in layer order, such as --layers dense:3,moe:58",
        )
    kind = 0 if times.kind is None else layers.names.index(times.kind)
    counts = tuple(times.layers if each == kind else 0 for each in range(len(layers.names)))
    return forward(f"{row.header.file}: line {row.line}", times.seconds, times.parts, counts, layers.topks)


def _our_forward(row: Row, reading: Reading) -> _Times:
    return _Times(
        row,
        row.positive("seconds"),
        [(row.integer("chunk_tokens", 1), row.integer("prefix_tokens"))],
        row.integer("layers", 1) if row.has("layers") else 1,
        row.text("kind") if row.has("kind") else None,
    )


def _context_module(row: Row, reading: Reading) -> _Times:
    part = (row.integer("isl", 1), row.integer("step"))
    return _Times(row, row.positive("latency") / 1e3, [part] * row.integer("batch_size", 1, MOST_BATCHED), 1, None)


def _our_transfer(row: Row, reading: Reading) -> Transfer:
    return _transfer(row, row.positive("seconds"), row.integer("tokens", 1))


def _our_bytes(row: Row, reading: Reading) -> Transfer:
    return _transfer(row, row.positive("seconds"), row.positive("bytes") / _bytes_per_token(row, reading))


def _send_recv(row: Row, reading: Reading) -> Transfer:
    seconds = row.positive("time_stats.send_recv.median") / 1e3
    return _transfer(row, seconds, row.positive("size") / _bytes_per_token(row, reading))


def _transfer(row: Row, seconds: float, tokens: float) -> Transfer:
    return Transfer(f"{row.header.file}: line {row.line}", seconds, tokens)


def _bytes_per_token(row: Row, reading: Reading) -> float:
    if reading.bytes_per_token is None:
        raise InputError(
            "counts bytes; how many a token has to carry is not known",
            file=row.header.file,
            remedy="--bytes-per-token N: the hidden state and residual of a token, or a TP rank's share of them",
        )
    return reading.bytes_per_token


_FORMS = (
    _Form(("chunk_tokens", "prefix_tokens", "seconds"), _our_forward),
    _Form(("tokens", "seconds"), _our_transfer),
    _Form(("bytes", "seconds"), _our_bytes),
    _Form(
        ("isl", "step", "latency", "batch_size"),
        _context_module,
        frozenset(("isl", "step", "latency", "batch_size", "kernel_source")),
    ),
    _Form(
        ("size", "time_stats.send_recv.median"),
        _send_recv,
        frozenset(("", "size", *(f"time_stats.send_recv.{kind}" for kind in ("min", "max", "mean", "median", "std")))),
    ),
)
