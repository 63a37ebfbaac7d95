"""``torchrun --standalone --nproc-per-node P -m runtime SCHEDULE``: run a schedule on real ranks."""

from __future__ import annotations

import os
import sys

from runtime.arguments import parse
from runtime.launched import end_with_the_launcher
from vppc.errors import VppcError


def main(arguments: list[str] | None = None) -> None:
    """Run one process of a schedule; a failure is one message on stderr and an exit status."""
    try:
        end_with_the_launcher()
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # what torch logs of a lost store, the watchdog tells
        given = sys.argv[1:] if arguments is None else arguments
        if "--selftest" in given:
            from runtime.selftest.command import main as selftest

            return selftest(given)
        parsed = parse(given)
        from runtime.run import run  # it imports torch, which takes seconds

        run(parsed)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        sys.stderr.write("vppc-run: needs torch, which is not installed\n  hint: pip install '.[runtime]'\n")
        sys.exit(2)
    except VppcError as error:
        sys.stderr.write(f"vppc-run: {error}\n")
        sys.exit(error.exit_status)
    except KeyboardInterrupt:  # before the watchdog listens to signals
        sys.stderr.write("vppc-run: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
