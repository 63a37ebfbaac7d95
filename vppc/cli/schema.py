"""``vppc schema``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from vppc.cli.output import JSON, Output
from vppc.costs.document import cost_schema
from vppc.files import write_text
from vppc.ir.schema import schedule_schema, segment_schema

SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "schedule": schedule_schema,
    "segment": segment_schema,
    "cost": cost_schema,
}


@click.command(name="schema")
@click.argument("document", type=click.Choice(list(SCHEMAS)))
@click.option("-o", "--output", metavar="FILE", type=Output("a schema", *JSON), help="Write to FILE [default: stdout].")
def command(document: str, output: str | None) -> None:
    """Print the JSON Schema (draft 2020-12) of a file format.

    It says what is wrong by itself: types, ranges, missing keys. That a schedule is sound, verify says.
    """
    write_text(output, json.dumps(SCHEMAS[document](), indent=1) + "\n")
