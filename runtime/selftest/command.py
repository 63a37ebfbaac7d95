"""What is installed, whether the processes reach each other, and what transfers between them cost.

``python -m runtime --selftest`` starts ``--pp`` processes on this machine; started by torchrun, on one machine or many,
it is one of the processes. With ``-o`` it writes a cost file with the measured ``transfer`` and ``interference``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from runtime.arguments import DEVICES
from runtime.arguments import parse as parse_run
from runtime.selftest.report import cost_json, installed_text, report_json, report_text
from vppc.errors import InputError
from vppc.files import check_writable, read_text, write_text
from vppc.json_text import loads

EPILOG = """\
examples:
  python -m runtime --selftest --pp 4
  python -m runtime --selftest --pp 2 --cost cost.json --bytes-per-token 3584 -o here.json
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:PORT -m runtime --selftest
"""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, checked by type and range."""

    pp: int
    device: str
    timeout: float
    max_bytes: int | None
    bytes_per_token: int | None
    cost: str | None
    output: str | None
    as_json: bool


def main(arguments: Sequence[str]) -> None:
    """Run the self-test. Raises a VppcError when it cannot, or when a process fails."""
    options = parse(arguments)
    base = read_base(options)
    if importlib.util.find_spec("torch") is None:
        raise InputError("needs torch, which is not installed", file="--selftest", remedy="pip install '.[runtime]'")
    session_arguments = parse_run(["selftest", f"--device={options.device}", f"--timeout={options.timeout}"])
    if "RANK" not in os.environ:
        _launch(options.pp, arguments)
    from runtime.devices.settings import check_settings
    from runtime.selftest.measure import installed, measure  # it imports torch, which takes seconds
    from runtime.session import Session

    with Session(session_arguments) as session:
        first = session.world.process == 0
        shown = first and options.output != "-" and not options.as_json
        if shown:
            device = session.device.name
            sys.stdout.write(f"{installed_text(device, installed(device), check_settings(device, os.environ))}\n\n")
            sys.stdout.flush()
        report = measure(session, options.max_bytes, aloud=first and sys.stderr.isatty())
        if first:
            if base is not None and options.bytes_per_token is not None:
                write_text(options.output, cost_json(base, report, options.bytes_per_token))
            if options.output != "-":
                sys.stdout.write(report_json(report) if options.as_json else report_text(report))


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line; a mistake ends the process with status 2 and one message."""
    parser = argparse.ArgumentParser(
        prog="python -m runtime --selftest",
        description=(__doc__ or "").partition("\n")[0],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--selftest", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--pp", type=_at_least(2), default=2, metavar="P", help="processes to start (default: 2)")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="what to test (default: what there is)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds within which a fault ends it (default: 60)"
    )
    parser.add_argument(
        "--max-bytes",
        type=_at_least(4096),
        metavar="N",
        help="of the largest transfer (default: 64 MiB; CPU 8 MiB)",
    )
    parser.add_argument("--bytes-per-token", type=_at_least(1), metavar="N", help="of a token on a channel, with -o")
    parser.add_argument("--cost", metavar="FILE", help="the cost file to put what is measured into, with -o")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the cost file; - writes it to stdout alone")
    parser.add_argument("--json", dest="as_json", action="store_true", help="print JSON instead of text")
    given = vars(parser.parse_args(arguments))
    del given["selftest"]
    return Options(**given)


def read_base(options: Options) -> dict[str, Any] | None:
    """The cost file to start from, None when none is to be written. Raises InputError when it is none."""
    if options.output is None:
        for option, given in (("--cost", options.cost), ("--bytes-per-token", options.bytes_per_token)):
            if given is not None:
                raise InputError("says nothing without -o", file=option, remedy="give -o, or leave it out")
        return None
    check_writable(options.output)
    if options.cost is None or options.bytes_per_token is None:
        raise InputError(
            "needs the model's cost file, and the bytes of a token on a channel",
            file="-o",
            remedy="add --cost FILE and --bytes-per-token N (the payload that vppc model NAME --tp T prints)",
        )
    document = loads(read_text(options.cost), options.cost)
    if not isinstance(document, dict) or document.get("format") != "vppc.cost":
        raise InputError("is not a cost file", file=options.cost, place="format", remedy='"format": "vppc.cost"')
    return document


def _launch(processes: int, arguments: Sequence[str]) -> NoReturn:
    """Become a launcher of processes that do the same."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    if sys.stderr.isatty():
        sys.stderr.write(f"starting {processes} processes ..\n")
    launcher = ["-m", "runtime.selftest.launch", "--standalone", f"--nproc-per-node={processes}", "-m", "runtime"]
    os.execv(sys.executable, [sys.executable, *launcher, *arguments])


def _at_least(low: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"{value} is not at least {low}")
        return value

    return whole_number
