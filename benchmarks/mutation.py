"""Change the sources a little, one place at a time, and see whether the tests notice: a mutation score.

    python -m benchmarks.mutation --mutants 100 --seed 0
    python -m benchmarks.mutation --only vppc/passes/chunking.py --mutants 30

A sample of all places is changed: comparisons, arithmetic, conditions, small numbers, truth values, statements that
are left out. Every mutant runs the tests of its part, in a copy of the tree, until one fails; one that takes several
times as long as the tests of the sources as they are has been noticed, too. Words are not changed. What survives is
shown with its line.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import networkx  # noqa: F401 (imported once, before the forks)
import pydantic  # noqa: F401
import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS: dict[str, tuple[str, ...]] = {
    "vppc/ir/rules": ("rules", "segments", "certificate", "deadlock", "memory", "mutations", "verify"),
    "vppc/ir": ("rules", "ir", "layout", "document", "segments", "assembly", "torch_csv", "graph", "convert", "verify"),
    "vppc/passes": (
        *("chunking", "balanced_split", "layout", "strategies", "simulate", "timing", "dynamic_chunking"),
        *("online_chunking", "memory", "compile_command", "paper"),
    ),
    "vppc/analysis": (
        "timing",
        "bounds",
        "breakdown",
        "deadlock",
        "simulate",
        "explain",
        "memory",
        "graph",
        "segments",
    ),
    "runtime/interpreter.py": ("interpreter",),
    "runtime/stream.py": (
        "stream_parts",
        "serve_stream::test_a_rank_runs_all_releases_each_request_once_and_keeps_nothing",
        "serve_stream::test_where_a_rank_is_said_to_stand",
    ),
}
"""The test files, or tests, of every part; the quick ones first, since a mutant's run ends at the first failure."""
SEVERAL = 4
"""Times as long as the tests of the sources as they are: then a mutant is given up."""
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
    """A changed module: its text, and what was changed where, for people."""

    path: str
    line: int
    change: str
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=100)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--only", action="append", metavar="PATH", help="a part, or a file of one; repeatable")
    parser.add_argument("--slowest", type=float, default=60.0, help="seconds for one mutant, at least (default 60)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vppc-mutants-") as folder:
        copy = Path(folder)
        for name in ("vppc", "runtime", "tests", "examples", "docs", "benchmarks", "pyproject.toml", "README.md"):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        os.chdir(copy)
        sys.path[:] = [str(copy), *(each for each in sys.path if each not in ("", str(ROOT)))]
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sites = [site for part in PARTS for site in sites_of(part, options.only)]
        chosen = Random(options.seed).sample(sites, min(options.mutants, len(sites)))
        limits = {}
        for part in sorted({part for part, _, _ in chosen}):
            start = time.monotonic()
            if (outcome := tested(part, 10 * options.slowest)) != "survived":
                print(
                    f"{Path(SAID).read_text()}\nthe tests of {part} fail as it is ({outcome}): no score",
                    file=sys.stderr,
                )
                return 1
            unchanged = time.monotonic() - start
            print(f"unchanged {unchanged:5.1f} s  {part}", flush=True)
            limits[part] = max(options.slowest, SEVERAL * unchanged)
        return report(sites, [outcome_of(*site, limits[site[0]]) for site in chosen])


def sites_of(part: str, only: Sequence[str] | None) -> Iterator[tuple[str, str, int]]:
    """(part, file, number of the place in it) of every place that can be changed."""
    files = [Path(part)] if part.endswith(".py") else sorted(Path(part).glob("*.py"))
    for file in files:
        if only is None or any(each in (part, str(file)) for each in only):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            yield from ((part, str(file), number) for number in range(len(list(places(tree)))))


def places(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that can be changed, in the order of the text; not words, types and what is shown to people."""
    for name, value in ast.iter_fields(node):
        if name in LEFT_OUT:
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Raise | ast.Assert):
                continue
            if changeable(child):
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
    text = Path(file).read_text(encoding="utf-8")
    tree = ast.parse(text)
    node = list(places(tree))[number]
    before = ast.unparse(node)
    line: int = getattr(node, "lineno", 0)
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
    return Mutant(file, line, change, ast.unparse(ast.fix_missing_locations(tree)))


def replaced(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if value is old:
                setattr(node, name, new)
            elif isinstance(value, list) and any(each is old for each in value):
                value[:] = [new if each is old else each for each in value]


def outcome_of(part: str, file: str, number: int, slowest: float) -> tuple[str, Mutant, str]:
    """(part, mutant, what became of it)."""
    changed = mutant(file, number)
    original = Path(file).read_text(encoding="utf-8")
    Path(file).write_text(changed.text, encoding="utf-8")
    start = time.monotonic()
    try:
        outcome = tested(part, slowest)
    finally:
        Path(file).write_text(original, encoding="utf-8")
    print(f"{outcome:8} {time.monotonic() - start:5.1f} s  {file}:{changed.line}: {changed.change[:110]}", flush=True)
    return part, changed, outcome


def tested(part: str, slowest: float) -> str:
    """Run the tests of a part in a fork, which imports the sources as they are now."""
    files = [f"tests/test_{name.replace('::', '.py::')}{'' if '::' in name else '.py'}" for name in PARTS[part]]
    child = os.fork()
    if not child:
        os.setsid()
        said = os.open(SAID, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for stream in (0, 1, 2):
            os.dup2(said, stream)
        status = 1
        try:
            status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "ci", *files]))
        except BaseException:  # noqa: BLE001 (also SystemExit: nothing of the child may run on)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    end = time.monotonic() + slowest
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "late"


def report(sites: Sequence[tuple[str, str, int]], outcomes: Sequence[tuple[str, Mutant, str]]) -> int:
    places_in = Counter(part for part, _, _ in sites)
    print(f"\n{len(outcomes)} of {len(sites):,} places changed")
    for part in [*PARTS, "all"]:
        mine = Counter(outcome for where, _, outcome in outcomes if part in (where, "all"))
        if total := sum(mine.values()):
            noticed = total - mine["survived"]
            print(
                f"  {part}: {noticed} of {total} noticed, {noticed / total:.0%} (of {places_in[part] or len(sites):,})"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
