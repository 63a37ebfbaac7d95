"""One of the paper's figures beside ours, with its error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from vppc.render.tables import table

Unit: TypeAlias = Literal["s", "%", "chunks"]
Kind: TypeAlias = Literal["fit", "held out"]
"""Whether the cost file was made from this figure, directly or with others, or has not seen it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """``ours`` beside the ``paper``'s: one value, a range in which it lies, or None where it names none.

    Ratios are parts of 1.
    """

    what: str
    ours: float
    paper: float | tuple[float, float] | None
    unit: Unit = "s"
    kind: Kind = "held out"

    @property
    def error(self) -> float | None:
        """Ours minus the paper's: of ratios as it is, of the rest as a part of the paper's; in its range 0."""
        if self.paper is None:
            return None
        low, high = self.paper if isinstance(self.paper, tuple) else (self.paper, self.paper)
        nearest = min(max(self.ours, low), high)
        return self.ours - nearest if self.unit == "%" else (self.ours - nearest) / nearest

    def row(self) -> tuple[str, str, str, str, str]:
        """The cells of its line in a table."""
        ours = _shown(self.ours, self.unit)
        if self.paper is None or self.error is None:
            return self.what, ours, "", "", ""
        error = f"{100 * self.error:+.1f}{' points' if self.unit == '%' else '%'}"
        return self.what, ours, _shown_range(self.paper, self.unit), error, self.kind


def figures_table(figures: Iterable[Figure]) -> str:
    """Figures as an aligned table."""
    return table(("", "ours", "paper", "error", "cost file"), (figure.row() for figure in figures), align="<>>><")


def _shown(value: float, unit: Unit) -> str:
    match unit:
        case "s":
            return f"{value:.2f} s"
        case "%":
            return f"{100 * value:.1f}%"
        case "chunks":
            return f"{value:,.0f}"


def _shown_range(value: float | tuple[float, float], unit: Unit) -> str:
    if isinstance(value, tuple):
        return " to ".join(_shown(end, unit) for end in value)
    return _shown(value, unit)
