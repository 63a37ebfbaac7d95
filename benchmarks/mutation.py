"""Change the sources a little, one place at a time, and see whether the tests notice: a mutation score.

    pip install coverage
    python -m benchmarks.mutation out/mutation --mutants 300 --seed 0
    python -m benchmarks.mutation out/line --only vppc/passes/chunking.py:38

First every file of tests runs once, and which test runs which line is written down. Then places of the sources, drawn
evenly, are changed one at a time: comparisons, arithmetic, conditions, small numbers, truth values, statements that are
left out; words are not. A mutant has to pass the tests that run its line, and then the others that run its file, the
quick ones first, until one fails or they have taken as long as ``--most`` says. One that takes several times the
processor's time of the sources as they are has been noticed, too. What survives is shown with its line.

All is kept in the folder, with the copy of the tree that it is about: with ``--seconds`` the command ends early, with
status 75, and the same command goes on from there. What is in the folder is not made again: give each tree its own.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import hypothesis  # noqa: F401 (these are imported once, before the forks)
import jsonschema  # type: ignore[import-untyped]  # noqa: F401
import networkx  # noqa: F401
import numpy  # noqa: F401
import pydantic  # noqa: F401
import pytest
import rich.table  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("vppc/ir", "vppc/ir/rules", "vppc/passes", "vppc/analysis", "runtime/interpreter.py", "runtime/stream.py")
ELSEWHERE = (
    *("ascend", "calibration", "devices", "docs", "explorer", "fuzz", "machine_options", "models"),
    *("options_matter", "packaging", "paper", "plot", "profiles", "reference", "report", "robustness", "runtime"),
    *("selftest", "serve_command", "serve_drift", "serve_load", "serve_requests", "serve_stream", "serving"),
    *("startup", "terminal", "tiny", "trace", "tuning", "upstream", "usage", "vllm", "workloads"),
)
"""How the files of tests begin that are left out: they run the sources in other processes, are about what stands on
them, or run long. A score without them is at most too low."""
SEVERAL = 4
"""Times the processor's time that the tests take with the sources as they are: then a mutant is given up."""
LEAST = 10.0
"""Seconds of the processor's time that a mutant has at least."""
BATCH = 4.0
"""Seconds of tests that run together in one process."""
SLOWEST = 100.0
"""Seconds of the processor's time that a file of tests has at most with the sources as they are."""
MEMORY = 8 << 30
UNFINISHED = 75
SAID = "said.txt"
"""What the last tests said, in the copy of the tree."""
LEFT_OUT = frozenset(("annotation", "returns", "decorator_list"))
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    each: other
    for one, two in (
        *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
        *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.Div, ast.Mod)),
        (ast.Continue, ast.Break),
    )
    for each, other in ((one, two), (two, one))
}


@dataclass(frozen=True)
class Mutant:
    """A changed module: its text, and what was changed where, for people; ``lines`` are of the statement around it."""

    path: str
    line: int
    lines: range
    change: str
    text: str


@dataclass
class Ran:
    """What the tests of one file did: how long each took, and which of them ran which lines of the sources.

    ``lines`` has source, line, and the numbers of the tests in ``seconds``.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, list[int]]] = field(default_factory=dict)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the copy of the tree and all that is found are kept")
    parser.add_argument("--mutants", type=int, default=100)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--only", action="append", metavar="PATH", help="a folder, a file or file:line; repeatable")
    parser.add_argument("--most", type=float, default=15.0, help="seconds of tests for a mutant (default 15)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop then; the same command goes on")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # behind what puts a mutant back
    end = time.monotonic() + options.seconds
    folder: Path = options.folder.resolve()
    if not (folder / "tree").exists():
        shutil.copytree(ROOT, folder / "copying", ignore=shutil.ignore_patterns(".*", "out", "build", "__pycache__"))
        (folder / "copying").rename(folder / "tree")
    os.chdir(folder / "tree")
    sys.path[:] = [os.getcwd(), *(each for each in sys.path if each not in ("", str(ROOT)))]
    tests = {}
    for file in sorted(Path("tests").glob("test_*.py")):
        if not file.stem.removeprefix("test_").startswith(ELSEWHERE):
            ran = folder / "ran" / f"{file.stem}.json"
            if not ran.exists():
                if time.monotonic() > end:
                    return UNFINISHED
                run(file, ran)
                print(f"{sum(read(ran).seconds.values()):5.1f} s  {len(read(ran).seconds)} tests of {file}", flush=True)
            tests[file] = read(ran)
    sites = [site for source in SOURCES for site in sites_of(source, options.only)]
    chosen = Random(options.seed).sample(sites, min(options.mutants, len(sites)))
    outcomes = folder / "outcomes.jsonl"
    outcomes.touch()
    found = {(each["source"], each["file"], each["number"]): each for each in map(json.loads, outcomes.open())}
    for site in chosen:
        if site not in found:
            if time.monotonic() > end:
                print(f"{sum(each in found for each in chosen)} of {len(chosen)}: the same command goes on", flush=True)
                return UNFINISHED
            found[site] = outcome_of(*site, tests, options.most)
            with outcomes.open("a") as lines:
                lines.write(json.dumps(found[site]) + "\n")
    return report(sites, [found[site] for site in chosen])


def run(file: Path, ran: Path) -> None:
    """Run a file of tests as it is, and write down what each test that passes took and ran."""

    def recorded() -> int:
        import coverage  # type: ignore[import-not-found]  # not among what the tests need

        measured = coverage.Coverage(
            data_file=None, config_file=False, include=[*SOURCES, *(f"{each}/*" for each in SOURCES)]
        )
        recorder = Recorder(measured)
        measured.start()
        pytest_main([str(file)], recorder)
        measured.stop()
        data = measured.get_data()
        names = {name: number for number, name in enumerate(recorder.passed)}
        lines = {
            str(Path(source).relative_to(Path.cwd())): {
                line: [names[name] for name in sorted(contexts) if name in names]
                for line, contexts in data.contexts_by_lineno(source).items()
            }
            for source in data.measured_files()
        }
        ran.parent.mkdir(exist_ok=True)
        ran.with_suffix(".part").write_text(json.dumps({"seconds": recorder.passed, "lines": lines}))
        ran.with_suffix(".part").rename(ran)
        return 0

    if (status := forked(recorded, SLOWEST)) != 0:
        raise SystemExit(f"{Path(SAID).read_text()}\n{file} could not be run: {status}")


class Recorder:
    """Tells coverage which test runs, and keeps the seconds of those that pass.

    What a fixture of several tests does is nobody's: a change of it may be noticed by any of them.
    """

    def __init__(self, measured: Any) -> None:
        self.measured = measured
        self.now = ""
        self.passed: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.now = item.nodeid
        self.measured.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.measured.switch_context("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope != "function":
            self.measured.switch_context("")
        try:
            return (yield)
        finally:
            self.measured.switch_context(self.now)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed[report.nodeid] = report.duration


class Only:
    """Runs the tests that are named, in their order, and no others."""

    def __init__(self, names: Sequence[str]) -> None:
        self.places = {name: place for place, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (each for each in items if each.nodeid in self.places), key=lambda each: self.places[each.nodeid]
        )


def read(ran: Path) -> Ran:
    found = json.loads(ran.read_text())
    lines = {source: {int(line): numbers for line, numbers in each.items()} for source, each in found["lines"].items()}
    return Ran(found["seconds"], lines)


def sites_of(source: str, only: Sequence[str] | None) -> Iterator[tuple[str, str, int]]:
    """(source, file, number of the place in it) of every place that can be changed."""
    for file in [Path(source)] if source.endswith(".py") else sorted(Path(source).glob("*.py")):
        for number, place in enumerate(places(ast.parse(file.read_text(encoding="utf-8")))):
            if only is None or {source, str(file), f"{file}:{place.lineno}"} & set(only):
                yield source, str(file), number


def places(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The nodes that can be changed, in the order of the text; not words, types and what is shown to people."""
    for name, value in ast.iter_fields(node):
        if name in LEFT_OUT:
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Raise | ast.Assert):
                continue
            if isinstance(child, ast.expr | ast.stmt) and changeable(child):
                yield child
            if not is_words(child):
                yield from places(child)


def changeable(node: ast.AST) -> bool:
    match node:
        case ast.Compare(ops=[op]) | ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op):
            return type(op) in SWAPS
        case ast.Continue() | ast.Break() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Constant(value=bool()) | ast.Constant(value=int()):
            return True
        case ast.Expr(value=ast.Call() as call):
            return not is_words(call)
    return False


def is_words(node: ast.AST) -> bool:
    """Whether a node only makes a message: its words are held by golden texts, not by logic."""
    match node:
        case ast.Call(func=ast.Attribute(attr="add"), args=[ast.Constant(value=str()), *_]):
            return True  # of a finding to a report
        case ast.Call(func=ast.Name(id="InputError")):
            return True
    return False


def mutant(file: str, number: int) -> Mutant:
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    node = list(places(tree))[number]
    before = ast.unparse(node)
    line, lines = node.lineno, lines_around(tree, node)
    after: ast.AST = node
    match node:
        case ast.Compare():
            node.ops = [SWAPS[type(node.ops[0])]()]  # type: ignore[list-item]
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign():
            node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
        case ast.Constant(value=bool() as truth):
            node.value = not truth
        case ast.Constant(value=int() as value):
            node.value = value + 1
        case ast.UnaryOp():
            after = node.operand
            replaced(tree, node, after)
        case ast.Continue() | ast.Break():
            after = ast.copy_location(SWAPS[type(node)](), node)
            replaced(tree, node, after)
        case ast.Expr():
            after = ast.copy_location(ast.Pass(), node)
            replaced(tree, node, after)
    change = f"{before}  ->  {ast.unparse(after)}"
    return Mutant(file, line, lines, change, ast.unparse(ast.fix_missing_locations(tree)))


def replaced(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if value is old:
                setattr(node, name, new)
            elif isinstance(value, list) and any(each is old for each in value):
                value[:] = [new if each is old else each for each in value]


def lines_around(tree: ast.AST, node: ast.AST) -> range:
    """The lines that run when a changed node does: its statement's, without the statements in that.

    None outside of functions, and for what a function's head says: that runs when the module is imported.
    """
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    statement = node
    while not isinstance(statement, ast.stmt):
        statement = parents[statement]
    around: ast.AST = statement
    inside = False
    while around in parents:
        around = parents[around]
        inside = inside or isinstance(around, ast.FunctionDef)
    if not inside or isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return range(0)
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno
    return range(statement.lineno, max(statement.lineno, last or 0) + 1)


def outcome_of(source: str, file: str, number: int, tests: dict[Path, Ran], most: float) -> dict[str, Any]:
    """What became of a mutant: where it is, how it was changed, ``outcome``, and the tests that it has passed."""
    changed = mutant(file, number)
    original = Path(file).read_text(encoding="utf-8")
    start = time.monotonic()
    outcome, passed = "survived", 0
    try:
        written(file, changed.text)
        for names, seconds in batches(changed, tests, most):
            limit = max(LEAST, SEVERAL * seconds)
            status = forked(partial(pytest_main, files_of(names), Only(names)), limit)
            if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                outcome = "killed" if status > 0 else "late"
                break
            passed += len(names)
    finally:
        written(file, original)
    print(f"{outcome:8} {time.monotonic() - start:5.1f} s  {file}:{changed.line}: {changed.change[:110]}", flush=True)
    place = {"source": source, "file": file, "number": number, "line": changed.line, "change": changed.change}
    return {**place, "outcome": outcome, "passed": passed, "of its line": bool(tests_of(changed, tests)[0])}


def written(file: str, text: str) -> None:
    """Write a module, and forget what it was compiled to, which is known by a time in seconds and a size."""
    Path(file).write_text(text, encoding="utf-8")
    for compiled in (Path(file).parent / "__pycache__").glob(f"{Path(file).stem}.*.pyc"):
        compiled.unlink()


def batches(changed: Mutant, tests: dict[Path, Ran], most: float) -> Iterator[tuple[list[str], float]]:
    """The tests of a mutant and their seconds, a few seconds at a time."""
    names: list[str] = []
    seconds = total = 0.0
    for several in tests_of(changed, tests):
        for name, each in several:
            if total + each <= most:
                names.append(name)
                seconds += each
                total += each
            if seconds >= BATCH:
                yield names, seconds
                names, seconds = [], 0.0
        if names:
            yield names, seconds
            names, seconds = [], 0.0


def tests_of(changed: Mutant, tests: dict[Path, Ran]) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """The tests that run a mutant's lines, and the others that run its file, each with its seconds.

    File by file, those whose tests are quick first, and so within a file.
    """
    of_lines: list[list[tuple[float, str]]] = []
    of_file: list[list[tuple[float, str]]] = []
    for ran in tests.values():
        lines = ran.lines.get(changed.path, {})
        names = list(ran.seconds)
        near = {number for line in changed.lines for number in lines.get(line, ())}
        far = {number for numbers in lines.values() for number in numbers} - near
        for numbers, several in ((near, of_lines), (far, of_file)):
            several.append(sorted((ran.seconds[names[number]], names[number]) for number in numbers))
    return quick_first(of_lines), quick_first(of_file)


def quick_first(files: Sequence[Sequence[tuple[float, str]]]) -> list[tuple[str, float]]:
    ordered = sorted((each for each in files if each), key=lambda each: sum(seconds for seconds, _ in each) / len(each))
    return [(name, seconds) for each in ordered for seconds, name in each]


def files_of(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name.partition("::")[0] for name in names))


def pytest_main(files: Sequence[str], plugin: object) -> int:
    options = ["-q", "-p", "no:cacheprovider", "--hypothesis-profile", "ci", "-W", "ignore:Module already imported"]
    return int(pytest.main([*(["-x"] if isinstance(plugin, Only) else []), *options, *files], plugins=[plugin]))


def forked(act: Callable[[], int], limit: float) -> int:
    """The status of what is done in a fork, which imports the sources as they are now; -1 where it took too long.

    ``limit`` is of the processor's time, or ten times that by the clock, for what waits.
    """
    child = os.fork()
    if not child:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        said = os.open(SAID, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for stream in (0, 1, 2):
            os.dup2(said, stream)
        status = 1
        try:
            status = act()
        except BaseException:  # noqa: BLE001 (also SystemExit: nothing of the child may run on)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    end, done = time.monotonic() + 10 * limit, 0
    try:
        while not done and time.monotonic() < end:
            time.sleep(0.02)
            done, status = os.waitpid(child, os.WNOHANG)
    finally:
        if not done:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if done and os.WIFEXITED(status) else -1


def report(sites: Sequence[tuple[str, str, int]], outcomes: Sequence[dict[str, Any]]) -> int:
    places_in = Counter(source for source, _, _ in sites)
    print(f"\n{len(outcomes)} of {len(sites):,} places changed")
    for source in [*SOURCES, "all"]:
        mine = Counter(each["outcome"] for each in outcomes if source in (each["source"], "all"))
        if total := sum(mine.values()):
            noticed = total - mine["survived"]
            places = places_in[source] or len(sites)
            print(f"  {source}: {noticed} of {total} noticed, {noticed / total:.0%} (of {places:,})")
    for each in outcomes:
        if each["outcome"] == "survived":
            print(f"  {each['file']}:{each['line']}: {each['change']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
