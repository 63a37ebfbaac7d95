"""What ``vppc shadow`` prints: what vLLM did, the costs that this shows, and what other schedules would come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vppc.costs.calibration import Calibration
from vppc.profiles.shadow import Shadow, ShadowRank
from vppc.render.calibration import calibration_json, calibration_text
from vppc.render.serving import serving_text
from vppc.render.tables import count, percent, printable, seconds, table
from vppc.serving.contest import Entry

NOTE = (
    "Prefill only, on the simulator's clock with these costs: decodes, transfers and vLLM's own time between batches\n"
    "are not in it. A request arrives when vLLM first scheduled it."
)


def shadow_text(shadow: Shadow, calibration: Calibration, entries: Sequence[Entry]) -> str:
    """The three parts, one after another; ends without a newline."""
    head = (
        f"{printable(shadow.model)} as vLLM ran it: {count(len(shadow.requests), 'request')}, "
        f"{count(len(shadow.ranks), 'rank')}, batches of at most {count(shadow.chunk_size, 'token')}"
    )
    columns = ("rank", "layers", "batches", "decodes only", "prompt tokens", "computing", "of the time")
    observed = table(columns, [_row(index, rank) for index, rank in enumerate(shadow.ranks)])
    gained = serving_text(entries, entries[-1].contestant)
    return "\n\n".join([head, observed, calibration_text(calibration), gained, NOTE])


def shadow_json(shadow: Shadow, calibration: Calibration, entries: Sequence[Entry]) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "model": shadow.model,
        "requests": len(shadow.requests),
        "ranks": [
            {"layers": list(rank.layers), "batches": len(rank.batches), "computing": rank.computing, "span": rank.span}
            for rank in shadow.ranks
        ],
        "calibration": calibration_json(calibration),
        "entries": [entry.json() for entry in entries],
    }


def _row(index: int, rank: ShadowRank) -> tuple[str, ...]:
    tokens = sum(part.tokens for batch in rank.batches for part in batch.parts if not part.decode)
    return (
        str(index),
        f"{rank.layers[0]}..{rank.layers[1]}",
        count(len(rank.batches)),
        count(sum(batch.decodes for batch in rank.batches)),
        count(tokens),
        seconds(rank.computing),
        percent(rank.computing / rank.span) if rank.span else "-",
    )
