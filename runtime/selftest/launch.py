"""``python -m runtime.selftest.launch``: torchrun, which ends with a line instead of a traceback."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Start processes as torchrun does. Ends with the status of the first that failed, or as the signal says."""
    os.environ.setdefault("LOGLEVEL", "ERROR")  # torchrun's own; that it passes a signal on is no news
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun()
    except SignalException as error:
        sys.stderr.write(f"vppc-run: ended by {error.sigval.name}\n")
        sys.exit(128 + error.sigval)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        sys.exit(max(1, failure.exitcode))


if __name__ == "__main__":
    main()
