"""A worker that fails ends the server, at once and with the reason, whichever rank it is."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm.logger import init_logger

log = init_logger("vllm.vppc")  # a name in whose messages vLLM shows process and time


def fatal(call: Callable[..., Any]) -> Callable[..., Any]:
    """What a worker is called for: an exception is logged, and ends the process, which vLLM's engine sees.

    Of the exceptions themselves it would hear rank 0's only, and those when rank 0 answers, while the ranks wait for
    each other. A process that takes leave of the others on its way out may wait for them, too.
    """

    @wraps(call)
    def called(*given: Any) -> Any:
        try:
            return call(*given)
        except Exception as error:
            log.exception("%s", error)
            logging.shutdown()
            os._exit(1)

    return called
