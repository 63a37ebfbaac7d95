"""Progress of long work, on stderr when that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(label: str, length: int) -> Iterator[Callable[..., object]]:
    """What to call after each of ``length`` steps; with a few words, which then stand beside the label."""
    if not sys.stderr.isatty():
        yield lambda words="": None
        return
    # only where there is a bar to draw: it takes longer to load than most commands run
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=length)
        yield lambda words="": bar.update(task, advance=1, description=f"{label}: {words}" if words else label)
