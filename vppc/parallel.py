"""Work on several things at once, in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from typing import TypeVar

from vppc.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(function: Callable[[Item], Result], items: Sequence[Item], jobs: int) -> Iterator[Result]:
    """``function`` of every item, in order, in ``jobs`` processes, or in this one if it is one job.

    Raises InputError when a process is killed.
    """
    if jobs == 1:
        yield from map(function, items)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        try:
            for result in [pool.submit(function, item) for item in items]:
                yield result.result()
        except BrokenProcessPool:
            raise InputError(
                "a process that judged a case was killed", place="--jobs", remedy="give fewer, if memory was short"
            ) from None
        except BaseException:
            for process in active_children():  # or leaving would wait for their cases
                process.terminate()
            raise
