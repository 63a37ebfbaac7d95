"""The prompts that a command line names a file of."""

from __future__ import annotations

import click

from vppc.files import read_text, source_name
from vppc.formats import format_of
from vppc.inputs.requests import parse_requests
from vppc.ir.schedule import Request
from vppc.ir.schema import SCHEDULE
from vppc.render.tables import count

WHO_IS_NEXT = "Who is next: first come, the paper's dual queue, fewest tokens left, or the nearest --ttft-target."
"""The policies of the queue, in the order of their names."""
IN_TIME = "Seconds to the first token of a request without a ttft_target of its own."


def read_prompts(path: str, *, prefix_hits: bool = False, limit: int | None = None) -> tuple[Request, ...]:
    """The requests in a file (``-`` is stdin); of a schedule those that it has, which is said.

    Raises InputError as :func:`vppc.inputs.requests.parse_requests` does.
    """
    text, file = read_text(path), source_name(path)
    requests = parse_requests(text, file, prefix_hits=prefix_hits, limit=limit)
    if format_of(text) == SCHEDULE:
        read = count(len(requests), "request")
        click.echo(f"note: {file} is a schedule, and nothing but its {read} read", err=True)
    return requests
