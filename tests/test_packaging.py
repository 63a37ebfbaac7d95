"""What is shipped: the wheel's contents and metadata, and what each part of the package may import."""

import ast
import email
import importlib.util
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import vppc

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"torch", "networkx", "pydantic", "numpy"}
COMPILER_NEEDS = {"click", "networkx", "pydantic", "rich", "typing_extensions"}
# The runtime imports these on machines that have torch and nothing else. Not the ones that check users' files.
STANDARD_LIBRARY_ONLY = sorted(
    {"vppc.errors", "vppc.costs.model"}
    | {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "vppc" / "ir").rglob("*.py")
    }
    - {"vppc.ir.document", "vppc.ir.instruction_json", "vppc.ir.schema"}
)


def imported_by(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter imports when it runs ``code``, vppc itself left out."""
    script = f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*set(sys.modules) - before)"
    shown = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {name.partition(".")[0] for name in shown.splitlines()[-1].split()} - {"vppc"}


@pytest.mark.parametrize("module", STANDARD_LIBRARY_ONLY)
def test_what_the_runtime_shares_needs_only_the_standard_library(module: str) -> None:
    assert imported_by(f"import {module}") <= sys.stdlib_module_names


def test_the_command_line_starts_without_heavy_imports() -> None:
    imported = imported_by("import vppc.cli")
    assert "click" in imported  # the check sees third-party imports at all
    assert not imported & HEAVY


def test_help_is_printed_without_heavy_imports() -> None:
    code = "import vppc.cli\ntry: vppc.cli.main(['--help'])\nexcept SystemExit: pass"
    assert not imported_by(code) & HEAVY


def third_party_imports(package: str) -> set[str]:
    """The top-level modules from elsewhere that a package's source names, also inside functions."""
    imported = set()
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module)
    return {name.partition(".")[0] for name in imported} - sys.stdlib_module_names


def test_the_compiler_declares_what_it_imports() -> None:
    # pydantic pins its core to the one version that goes with it; ortools is the extra ``exact``, bokeh and resvg_py
    # are ``report``, and what ``vppc serve`` sends to ranks runs on the extra ``runtime``
    extras = {"ortools", "bokeh", "resvg_py", "torch", "runtime"}
    assert third_party_imports("vppc") - {"vppc", "pydantic_core"} - extras == COMPILER_NEEDS


def test_the_runtime_needs_torch_and_nothing_else() -> None:
    # vllm is for the vllm runner and the plugin, imported when they are asked for; prometheus_client comes with it
    with_vllm = {"vllm", "vllm_ascend", "prometheus_client"}
    assert third_party_imports("runtime") - {"runtime", "vppc"} - with_vllm <= {"torch", "torch_npu"}


def test_no_module_of_the_runtime_brings_in_what_the_compiler_needs() -> None:
    pytest.importorskip("torch", reason="the runtime needs torch")
    imported = imported_by(
        "import importlib, pkgutil, runtime\n"
        "for module in pkgutil.walk_packages(runtime.__path__, 'runtime.'):\n"
        "    if not {'vllm', 'vllm_ascend', 'vllm_plugin'} & set(module.name.split('.')[:-1]):\n"
        "        importlib.import_module(module.name)"
    )
    assert "torch" in imported
    assert not imported & {"click", "networkx", "pydantic"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what a checkout holds for it."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for package in ("vppc", "runtime"):
        if (ROOT / package).is_dir():
            shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(built), str(source)]
    if importlib.util.find_spec("hatchling"):
        command.append("--no-build-isolation")
    subprocess.run(command, check=True, capture_output=True, text=True)
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """The wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_string(archive.read(f"vppc-{vppc.__version__}.dist-info/METADATA").decode())


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {
        path.relative_to(ROOT).as_posix()
        for package in ("vppc", "runtime")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "vppc/cli/__init__.py" in shipped
    assert "vppc/py.typed" in shipped
    assert shipped == modules


@pytest.mark.slow
def test_the_wheel_names_its_version_licence_and_command(wheel: Path, metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("vppc", vppc.__version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    with zipfile.ZipFile(wheel) as archive:
        entry_points = archive.read(f"vppc-{vppc.__version__}.dist-info/entry_points.txt").decode()
        assert f"vppc-{vppc.__version__}.dist-info/licenses/LICENSE" in archive.namelist()
    assert {"vppc = vppc.cli:main", "vppc-run = runtime.__main__:main"} <= set(entry_points.splitlines())


@pytest.mark.slow
def test_the_compiler_needs_no_torch(metadata: Message) -> None:
    requirements = metadata.get_all("Requires-Dist") or []
    core = [Requirement(line) for line in requirements if "extra ==" not in line]
    assert {requirement.name.replace("-", "_") for requirement in core} == COMPILER_NEEDS
    assert all("<" in str(requirement.specifier) for requirement in core)  # every one has an upper bound
    assert any(line.startswith("torch<") and "extra == 'runtime'" in line for line in requirements)


@pytest.mark.slow
def test_the_installed_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "import vppc; print(vppc.__file__); from vppc.cli import main; main(['--version'])"
    shown = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    where, version = shown.stdout.splitlines()
    assert Path(where).is_relative_to(tmp_path)
    assert version == f"vppc, version {vppc.__version__}"


def test_every_dependency_is_locked_inside_its_bounds() -> None:
    locked: dict[str, str] = {}
    for lock in (ROOT / "requirements").glob("*.lock"):
        for line in lock.read_text().splitlines():
            if line and not line.startswith("#"):
                name, _, version = line.partition("==")
                locked[name.lower().replace("_", "-")] = version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = project["build-system"]["requires"] + project["project"]["dependencies"]
    for text in wanted + extras["runtime"] + extras["report"] + extras["test"]:
        requirement = Requirement(text)
        version = locked[requirement.name.lower().replace("_", "-")]
        assert requirement.specifier.contains(version), f"{text} does not allow {version}"
