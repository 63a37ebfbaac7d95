"""What a run is told on the command line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

RUNNERS = ("reference", "timed", "null", "vllm")
DEVICES = ("auto", "cpu", "cuda", "npu")

EPILOG = """\
examples:
  torchrun --standalone --nproc-per-node 2 -m runtime plan.json
  torchrun --standalone --nproc-per-node 2 -m runtime plan.json --runner timed --journal out/run
  torchrun --standalone --nproc-per-node 2 -m runtime plan.json --runner vllm --model checkpoint
  torchrun --nproc-per-node 2 -m runtime --stream     (and beside it: vppc serve --attach HOST:PORT)
  python -m runtime --selftest --help

signals, to the process of any rank: USR1 prints where every rank stands; USR2 cancels the requests that the rank
works on, on all ranks; INT and TERM end the run.
exit status: 0 done, 1 the run failed, 2 bad usage or bad input.
"""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The command line, checked by type and range. ``schedule`` is empty for a ``stream``."""

    schedule: str
    stream: bool
    runner: str
    model: str | None
    tp: int
    device: str
    timeout: float
    journal: Path | None
    prompts: str | None
    cancel: tuple[tuple[str, int], ...]
    dtype: str
    seed: int
    check_finite: bool
    profile: Path | None
    quiet: bool


def parse(arguments: list[str]) -> Arguments:
    """Read the command line; a mistake ends the process with status 2 and one message."""
    parser = argparse.ArgumentParser(
        prog="python -m runtime",
        description="Run a compiled schedule: one process a rank, started by torchrun.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("schedule", metavar="SCHEDULE", nargs="?", help="a schedule file from vppc compile")
    parser.add_argument("--stream", action="store_true", help="run what `vppc serve` sends, in place of a file")
    parser.add_argument(
        "--runner",
        choices=RUNNERS,
        default="reference",
        help="reference: a real decoder; vllm: the checkpoint on vLLM's model runner; timed: as long as the cost file "
        "says; null: nothing (default: reference)",
    )
    parser.add_argument("--model", metavar="DIR", help="Hugging Face checkpoint folder (default: a small seeded model)")
    parser.add_argument("--tp", type=_positive, default=1, metavar="T", help="processes a rank (default: 1)")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="where to compute (default: what there is)")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="seconds within which a fault ends the run (default: 60)",
    )
    parser.add_argument("--journal", type=Path, metavar="DIR", help="write what each process did when")
    parser.add_argument("--prompts", metavar="FILE", help="JSON object of token ids by request (default: seeded)")
    parser.add_argument(
        "--cancel",
        type=_cancel,
        action="append",
        default=[],
        metavar="REQUEST@CHUNK",
        help="cancel a request when a rank reaches a chunk; repeat for more",
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of weights and activations"
    )
    parser.add_argument("--seed", type=int, default=0, help="of seeded weights and prompts (default: 0)")
    parser.add_argument(
        "--check-finite", action="store_true", help="stop at the first NaN or infinity in an activation"
    )
    parser.add_argument("--profile", type=Path, metavar="DIR", help="write torch.profiler traces")
    parser.add_argument("--quiet", action="store_true", help="leave it to who started the ranks to say why they end")
    given = vars(parser.parse_args(arguments))
    if given["stream"]:
        for option in ("schedule", "journal", "prompts", "cancel", "profile"):
            if given[option]:
                parser.error(f"--stream takes no {option}")
        given["schedule"] = ""
    elif given["schedule"] is None:
        parser.error("the following arguments are required: SCHEDULE")
    if given["runner"] in ("timed", "null"):
        for option in ("model", "prompts", "dtype", "seed", "check_finite"):
            if given[option] != parser.get_default(option):
                name = option.replace("_", "-")
                parser.error(f"--{name} says nothing beside --runner {given['runner']}, which computes nothing")
    return Arguments(**{**given, "cancel": tuple(given["cancel"])})


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.5 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.5 and 86400 seconds")
    return value


def _cancel(text: str) -> tuple[str, int]:
    request, at, chunk = text.rpartition("@")
    if not at or not request or not chunk.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not REQUEST@CHUNK, such as r0@3")
    return request, int(chunk)
