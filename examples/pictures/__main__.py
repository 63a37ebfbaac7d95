"""``python -m examples.pictures docs/images``, from the repository's root, draws them anew."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click

from examples.pictures import placements, spans, timelines
from vppc.files import write_text


def pictures() -> Iterator[tuple[str, str]]:
    """All of them, by file name."""
    return chain(timelines.seeing(), timelines.idea(), timelines.passes(), placements.pictures(), spans.pictures())


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def command(folder: Path) -> None:
    """Draw the pictures of the documentation into FOLDER."""
    for name, drawn in pictures():
        write_text(str(folder / name), drawn)


if __name__ == "__main__":
    command()
