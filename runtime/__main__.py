"""``torchrun --nproc-per-node P -m runtime SCHEDULE``: run a schedule on real ranks."""

from __future__ import annotations

import sys

from runtime.arguments import parse
from runtime.run import run
from vppc.errors import VppcError


def main(arguments: list[str] | None = None) -> None:
    """Run one process of a schedule; a failure is one message on stderr and an exit status."""
    try:
        run(parse(sys.argv[1:] if arguments is None else arguments))
    except VppcError as error:
        sys.stderr.write(f"vppc-run: {error}\n")
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
