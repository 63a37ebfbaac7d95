"""Rules of channels: the i-th SEND of a channel meets its i-th RECV, and both name the same activation."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

from vppc.ir.rules.explain import excerpt, name, place, row_of
from vppc.ir.rules.program import Pipe, Tape
from vppc.ir.rules.registry import Report


def match(pipes: Sequence[Pipe], tapes: Sequence[Tape], report: Report, *, closed: bool) -> None:
    """Judge what was posted on the channels since the last time (rule C6, and C5 of a ``closed`` stream).

    Those that match are noted in the tapes' ``partner``.
    """
    for pipe in pipes:
        first, met = pipe.met, min(len(pipe.sent), len(pipe.received))
        if closed and len(pipe.sent) != len(pipe.received):
            _report_unmatched(pipe, tapes, report)
        elif first == met:
            continue
        elif pipe.sent[first:met] != pipe.received[first:met]:
            _report_mismatch(pipe, tapes, report)
        else:
            _pair(
                tapes[pipe.src].partner, tapes[pipe.dst].partner, pipe.sent_at[first:met], pipe.received_at[first:met]
            )
            pipe.met = met


def check_used(pipes: Sequence[Pipe], report: Report) -> None:
    """Judge a closed stream that has chunks: every channel is used (rule C4)."""
    for index, pipe in enumerate(pipes):
        if not (pipe.used or pipe.sent or pipe.received):
            way = f"from rank {pipe.src} to rank {pipe.dst}"
            report.add(
                "C4", f"channels[{index}]", f"nothing is passed on channel {pipe.id} {way}", "remove the channel"
            )


def _pair(senders: array[int], receivers: array[int], sent_at: array[int], received_at: array[int]) -> None:
    for send, receive in zip(sent_at, received_at, strict=True):
        senders[send] = receive
        receivers[receive] = send


def _report_mismatch(pipe: Pipe, tapes: Sequence[Tape], report: Report) -> None:
    """Rule C6. Only the first is shown: those behind it may only be shifted by it."""
    source, target = tapes[pipe.src], tapes[pipe.dst]
    number = next(i for i, (a, b) in enumerate(zip(pipe.sent, pipe.received, strict=False)) if a != b)
    send, receive = pipe.sent_at[number], pipe.received_at[number]
    sent, received = name(row_of(source, send)), name(row_of(target, receive))
    report.add(
        "C6",
        place(target.rank, receive),
        f"{received} is transfer {number} of channel {pipe.id}, where rank {pipe.src} does {sent} (instruction {send})",
        f"post the SENDs and RECVs of channel {pipe.id} in the same order",
        f"{excerpt(target, receive)}\n  rank {pipe.src}:\n{excerpt(source, send)}",
    )


def _report_unmatched(pipe: Pipe, tapes: Sequence[Tape], report: Report) -> None:
    """Rule C5: what one end posts and the other does not."""
    ends = (
        (tapes[pipe.src], pipe.sent, pipe.sent_at, pipe.received, pipe.dst, "RECV"),
        (tapes[pipe.dst], pipe.received, pipe.received_at, pipe.sent, pipe.src, "SEND"),
    )
    for tape, values, posts, others, peer, wanted in ends:
        open_at_peer = Counter(others)
        for value, index in zip(values, posts, strict=True):
            open_at_peer[value] -= 1
            if open_at_peer[value] < 0:
                _, chunk, stage, *_ = row_of(tape, index)
                met_by = f"{wanted} c{chunk} s{stage + 1 if wanted == 'RECV' else stage - 1}"
                report.add(
                    "C5",
                    place(tape.rank, index),
                    f"{name(row_of(tape, index))} on channel {pipe.id} is met by no {wanted} of rank {peer}",
                    f"add {met_by} to rank {peer}'s list, or remove this one",
                    "" if report.full("C5") else excerpt(tape, index),
                )
