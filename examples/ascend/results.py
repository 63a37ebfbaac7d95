"""``python -m examples.ascend.results vpp=DIR cpp=DIR dcpp=DIR``: what AISBench measured, beside the paper.

Each folder is one that ``examples.ascend.suites`` wrote, after its suites ran on a server of that name. A gain is in
throughput: how much longer the other server took for the same prompts. The paper's gains are those that it gives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from vppc.errors import InputError
from vppc.render.tables import table
from vppc.serving.workloads import SUITES

NUMBERS = Path(__file__).parents[1] / "paper" / "numbers.json"
BASELINES = ("cpp", "dcpp")


def paper_gains() -> dict[tuple[str, str], float]:
    """VPP's gains on DeepSeek-V3.1, by suite and baseline."""
    paper = json.loads(NUMBERS.read_text(encoding="utf-8"))
    mixed, short, long = paper["figure_5"]["deepseek"], paper["figure_3"]["deepseek"], paper["figure_4"]
    found = {("mixed", other): mixed[f"vpp_over_{other}"] for other in BASELINES}
    found |= {(suite, "dcpp"): gain for suite, gain in short["vpp_over_dcpp"].items()}
    return found | {(f"long-{int(tokens) // 1024}k", "dcpp"): gain for tokens, gain in long["vpp_over_dcpp"].items()}


def durations(folder: Path) -> dict[str, float]:
    """Seconds that each suite took, by its name, in its last run there. Raises InputError for one with failures."""
    found = {}
    for name in SUITES:
        files = sorted((folder / "results" / name).glob("**/performances/*/*.json"))
        if files:
            found[name] = _seconds(files[-1])
    if not found:
        raise InputError("has no results of AISBench", file=str(folder), remedy="ais_bench FOLDER/SUITE.py -m perf")
    return found


def _seconds(file: Path) -> float:
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        failed = int(said["Failed Requests"]["total"])
        duration, unit = str(said["Benchmark Duration"]["total"]).split()
    except (KeyError, TypeError, ValueError):
        raise InputError("is no result of AISBench's", file=str(file), remedy="a JSON of `performances`") from None
    if failed or unit != "ms":
        raise InputError(f"{failed} requests failed, and times are in {unit}", file=str(file), remedy="run it again")
    return float(duration) / 1e3


def compared(measured: Mapping[str, Mapping[str, float]]) -> str:
    """A table of the suites that the first server ran, and its gain over each other one."""
    (ours, first), *others = measured.items()
    paper = paper_gains()
    rows = []
    for suite, seconds in first.items():
        row = [suite, f"{seconds:.1f} s"]
        for name, theirs in others:
            said = paper.get((suite, name))
            row.append(f"{theirs[suite]:.1f} s" if suite in theirs else "")
            row.append(f"{theirs[suite] / seconds - 1:+.1%}" if suite in theirs else "")
            row.append("" if said is None else f"{said:+.1%}")
        rows.append(row)
    headers = ["suite", ours, *(text for name, _ in others for text in (name, f"{ours} over {name}", "paper"))]
    return table(headers, rows)


@click.command()
@click.argument("servers", nargs=-1, required=True, metavar="NAME=DIR...")
def main(servers: tuple[str, ...]) -> None:
    """Compare the suites that AISBench ran on several servers; gains are the first one's."""
    if not all("=" in server for server in servers):
        raise click.UsageError("name each server: vpp=DIR cpp=DIR")
    try:
        given = dict(server.split("=", 1) for server in servers)
        click.echo(compared({name: durations(Path(folder)) for name, folder in given.items()}))
    except InputError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
