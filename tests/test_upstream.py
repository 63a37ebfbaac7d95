"""Other packages are as ours takes them to be: requirements/upstream.toml against their sources, and against ours."""

from __future__ import annotations

import ast
import io
import zipfile
from collections.abc import Iterator
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import upstream
from upstream import LIST, ROOT, Entry, Sources, entries, of_archive, of_folder, of_wheel

ENTRIES = entries()
STANDINS = Path(__file__).parent / "standins"
OURS = sorted((ROOT / "runtime").rglob("*.py"))


def problems(sources: Sources, listed: list[Entry]) -> list[str]:
    """One line each: the package, the line of the list, and what is there instead."""
    found = [(entry, sources.problem(entry.module, entry.text)) for entry in listed]
    name = LIST.relative_to(ROOT)
    return [f"{e.wheel}: {name}:{e.line}: {e.module}: {e.text}: {said}" for e, said in found if said]


@pytest.mark.parametrize("wheel", sorted({entry.wheel for entry in ENTRIES}))
def test_a_package_has_what_ours_touches(wheel: str) -> None:
    sources = of_wheel(wheel)
    if sources is None:
        pytest.skip(f"{wheel} is not here: scripts/upstream {wheel} fetches it")
    assert problems(sources, [entry for entry in ENTRIES if entry.wheel == wheel]) == []


@pytest.mark.parametrize("wheel", ["vllm-ascend==0.23.0", "vllm-ascend==0.26.0rc1"])
def test_mooncakes_other_side_asks_each_stage_for_its_layers(wheel: str) -> None:
    """By the real one's own function of the partition that is asked for, at the port that a stage's connector takes."""
    sources = of_wheel(wheel)
    if sources is None:
        pytest.skip(f"{wheel} is not here: scripts/upstream {wheel} fetches it")
    module = sources.module("vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_connector")
    assert module is not None
    real: dict[str, Any] = {}
    exec(ast.unparse(module.defined["get_prefill_pp_indices"]), {}, real)
    stages = (16, 15, 15, 15)
    ranges = [real["get_prefill_pp_indices"](61, stage, 4, "16,15,15,15") for stage in range(4)]
    assert ranges == list(pairwise(accumulate(stages, initial=0)))
    assigned = {
        f"{ast.unparse(node.targets[0])} = {ast.unparse(node.value)}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign)
    }
    assert {
        "self.pp_rank = get_pp_group().rank_in_group",
        "device_index = (self.pp_rank * self.pcp_size + self.pcp_rank) * self.tp_size + self.tp_rank",
        "self.handshake_port = self.side_channel_port + device_index",
        "(first_layer_index, end_layer_index) = self.pp_layer_indices[prefill_pp_rank]",
    } <= assigned


@pytest.mark.parametrize(("wheel", "lines"), [("torch-npu==2.10.0", 20), ("vllm-ascend==0.23.0", 56)])
def test_the_stand_in_has_the_signatures_of_the_real_one(wheel: str, lines: int) -> None:
    listed = [entry for entry in ENTRIES if entry.standin and entry.wheel == wheel]
    assert len(listed) == lines
    sites = list(upstream.ENVIRONMENTS.glob("python*/site-packages"))
    if wheel.startswith("vllm") and not sites:
        pytest.skip("there is no .venv-vllm, and the stand-in for vLLM-Ascend stands on it")
    assert problems(of_folder(STANDINS, *sites), listed) == []


def test_the_list_says_where_each_line_is() -> None:
    lines = LIST.read_text(encoding="utf-8").splitlines()
    assert [entry for entry in ENTRIES if entry.text not in lines[entry.line - 1]] == []
    assert len({(entry.wheel, entry.module, entry.text) for entry in ENTRIES}) == len(ENTRIES)


LISTED = {(entry.module, entry.text.removeprefix("class ").partition("(")[0].split(" ")[-1]) for entry in ENTRIES}


class TestOurs:
    """Nothing of ours uses what is not listed, as far as a program can see."""

    def test_imports_are_listed(self) -> None:
        imported = {(module, name) for path in OURS for module, name in imports(path)}
        assert len(imported) > 20
        # a class of which methods are listed is listed
        listed = {(module, name.partition(".")[0]) for module, name in LISTED}
        assert imported - listed == {("", "vllm")}

    def test_what_is_asked_of_the_profiler_is_listed(self) -> None:
        """In what writes profiles ``npu`` is torch_npu."""
        asked = {
            (ast.unparse(node.value), node.attr)
            for node in ast.walk(ast.parse((ROOT / "runtime" / "profiling.py").read_text(encoding="utf-8")))
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("npu", "npu.npu", "npu.profiler")
        }
        listed = {(module, name.partition(".")[0]) for module, name in LISTED}
        assert ("npu.profiler", "profile") in asked
        assert {(f"torch_{place}", name) for place, name in asked} <= listed

    def test_what_is_asked_of_a_device_is_listed(self) -> None:
        """``self.module`` is torch_npu.npu in what CUDA and NPUs share."""
        asked = {
            node.attr
            for name in ("accelerator", "progress", "npu")
            for node in ast.walk(ast.parse((ROOT / "runtime" / "devices" / f"{name}.py").read_text(encoding="utf-8")))
            if isinstance(node, ast.Attribute)
            and ast.unparse(node.value) in ("self.module", "torch_npu.npu", "import_torch_npu().npu")
        }
        assert {"Event", "mem_get_info", "set_device"} < asked
        assert asked - {"utils"} <= {name for module, name in LISTED if module == "torch_npu.npu"}


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """What a file of ours imports of vLLM and vLLM-Ascend: modules, and names in them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found = [(node.module or "", alias.name) for alias in node.names]
        else:
            names = node.names if isinstance(node, ast.Import) else ()
            found = [(module, name) for module, _, name in (alias.name.rpartition(".") for alias in names)]
        yield from (each for each in found if (each[0] or each[1]).partition(".")[0] in ("vllm", "vllm_ascend"))


PACKAGE: dict[str, str | bytes] = {
    "pkg/__init__.py": "from . import sub\nfrom .base import *\nimport other.thing as thing\n__version__ = '1'\n",
    "pkg/base.py": """
from typing import NamedTuple
class Base:
    def inherited(self, a, b=1, /, *rest, c, d=2, **more): ...
    @property
    def seen(self): return 1
if True:
    try:
        def late(x): ...
    except ImportError:
        late = None
class Pair(NamedTuple):
    first: int
    second: int = 0
""",
    "pkg/sub/__init__.py": "from ..base import Base as Root, Pair\nfrom .deep import made\n",
    "pkg/sub/deep.py": """
from pkg import sub
from pkg.sub import Root
class Child(Root):
    field: int = 0
    def __init__(self, one, two=None):
        self.kept, (self.both, _) = one, two
    async def run(self): return "a setting"
made = Child(1)
class Alias(sub.Root): ...
""",
    "pkg/lib.so": b"\x7fELF\0P2P_SIZE\0LIMIT_OF\0",
}


@cache
def packaged() -> Sources:
    """The package above, in a wheel."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for path, text in PACKAGE.items():
            archive.writestr(path, text)
    return of_archive(zipfile.ZipFile(held))


class TestReading:
    """What the syntax of a line means."""

    @pytest.mark.parametrize(
        ("module", "line"),
        [
            ("pkg", "__version__"),
            ("pkg", "sub"),
            ("pkg", "thing"),  # another package's
            ("pkg", "late(x)"),
            ("pkg", "sub.deep.Child.kept"),
            ("pkg.base", "Base.inherited(self, a, b=..., *rest, c, d=..., **more)"),
            ("pkg.base", "@property Base.seen"),
            ("pkg.base", "Pair(first, second=...)"),
            ("pkg.base", "Pair(first, ...)"),
            ("pkg.sub", "Root.seen"),
            ("pkg.sub.deep", "class Child(Root)"),
            ("pkg.sub.deep", "Child(one, two=...)"),
            ("pkg.sub.deep", "Child(one, ...)"),
            ("pkg.sub.deep", "Child.run(self)"),
            ("pkg.sub.deep", "Child.both"),
            ("pkg.sub.deep", "Child.field"),
            ("pkg.sub.deep", "Child.inherited(self, a, c, ...)"),
            ("pkg.sub.deep", "Alias.seen"),
            ("pkg.sub.deep", '"a setting"'),
            ("pkg/lib.so", '"P2P_SIZE"'),
            ("pkg/lib.so", '"SIZE"'),
        ],
    )
    def test_what_holds(self, module: str, line: str) -> None:
        assert packaged().problem(module, line) == ""

    @pytest.mark.parametrize(
        ("module", "line", "said"),
        [
            ("pkg.gone", "anything", "there is no module pkg.gone"),
            ("pkg", "gone", "pkg/__init__.py has it not"),
            ("pkg.base", "Base.gone", "pkg/base.py has it not"),
            ("pkg.base", "@property Base.inherited", "pkg/base.py:4 is no property"),
            ("pkg", "late(y)", "pkg/base.py:9 is (x)"),
            ("pkg.sub.deep", "class Child(Base)", "pkg/sub/deep.py:4 has bases Root"),
            ("pkg.sub.deep", "Child(one, two)", "pkg/sub/deep.py:6 is (one, two=...)"),
            ("pkg.sub.deep", "Child(two, one=...)", "pkg/sub/deep.py:6 is (one, two=...)"),
            ("pkg.sub.deep", "Child(two, ...)", "pkg/sub/deep.py:6 is (one, two=...)"),  # one is needed
            ("pkg.sub.deep", "Child(one, three, ...)", "pkg/sub/deep.py:6 is (one, two=...)"),
            ("pkg.base", "Base.inherited(self, a, ...)", "pkg/base.py:4 is (self, a, b=..., *rest, c, d=..., **more)"),
            ("pkg.base", "Pair(first)", "pkg/base.py:12 is (first, second=...)"),
            ("pkg.sub.deep", "made()", "pkg/sub/deep.py:9 is nothing that is called"),
            ("pkg.sub.deep", '"another"', "pkg/sub/deep.py has no such string"),
            ("pkg/lib.so", '"LIMIT"', "pkg/lib.so has it not"),
        ],
    )
    def test_what_does_not(self, module: str, line: str, said: str) -> None:
        assert packaged().problem(module, line) == said

    def test_a_package_that_changed_is_named_with_the_line(self, tmp_path: Path) -> None:
        path = tmp_path / "list.toml"
        path.write_text('[[uses]]\nwheels = ["pkg==1", "pkg==2"]\n[uses.names]\n"pkg.m" = [\n  "f(a)",\n  "g",\n]\n')
        (tmp_path / "pkg").mkdir()
        (tmp_path / "pkg" / "m.py").write_text("def f(a, b): ...\ng = 1\n")
        assert problems(of_folder(tmp_path), entries(path)) == [
            f"pkg=={version}: requirements/upstream.toml:5: pkg.m: f(a): pkg/m.py:1 is (a, b)" for version in (1, 2)
        ]

    def test_a_package_that_is_nowhere_has_no_sources(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(upstream, "WHEELS", tmp_path)
        monkeypatch.setattr(upstream, "ENVIRONMENTS", tmp_path)
        assert of_wheel("torch-npu==2.10.0") is None
        site = tmp_path / "python3.11" / "site-packages"
        (site / "torch_npu-2.10.0.dist-info").mkdir(parents=True)
        (site / "torch_npu.py").write_text("npu = 1\n")
        installed = of_wheel("torch-npu==2.10.0")
        assert installed is not None and installed.problem("torch_npu", "npu") == ""
