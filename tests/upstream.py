"""What other packages' sources define, read from a wheel or a folder and never imported.

``requirements/upstream.toml`` lists what ours touches of them; :meth:`Sources.problem` holds one line of it against
the sources. The syntax of a line:

    Name                     a class, function, variable or import of that name is there
    Class.name               the class, or a class of the same package above it, has it, be it as ``self.name = ..``
    f(a, b=..., *, c)        these parameters and no others: names, order, kinds, and which have defaults
    f(a, ...)                these parameters are there, and all others have defaults
    Class(a, ...)            the same of a class's constructor, without ``self``
    class C(Base)            these bases and no others
    @property Class.name     it is decorated so, whatever comes behind
    "TEXT"                   a string of the module; of a library, the end of one (linkers merge ends that are the same)
"""

from __future__ import annotations

import ast
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIST = ROOT / "requirements" / "upstream.toml"
WHEELS = ROOT / "build" / "wheels"
ENVIRONMENTS = ROOT / ".venv-vllm" / "lib"

Read = Callable[[str], bytes | None]
"""The bytes of a file of a package, by its path; None when there is none."""
Parameter = tuple[str, str, bool]
"""Name, kind, and whether it can be left out."""


class Entry(NamedTuple):
    """A line of the list: the ``text`` that has to hold of ``module`` in ``wheel``, and where the list says so; and
    whether the tests' stand-in for the package is held to it, too."""

    wheel: str
    module: str
    text: str
    line: int
    standin: bool


def entries(path: Path = LIST) -> list[Entry]:
    """The lines of the list, each once for every wheel that it has to hold in."""
    text = path.read_text(encoding="utf-8")
    found = []
    at = 0
    for block in tomllib.loads(text)["uses"]:
        at = text.index("[[uses]]", at) + 1
        for module, lines in block["names"].items():
            place = text.index(f'"{module}" = [', at)
            for each in lines:
                place = text.index(each, place)
                number = text.count("\n", 0, place) + 1
                found += [Entry(wheel, module, each, number, block.get("standin", False)) for wheel in block["wheels"]]
    return found


def of_wheel(wheel: str) -> Sources | None:
    """The sources of ``name==version``: its wheel in build/wheels, or where it is installed; None without either."""
    distribution = wheel.replace("-", "_").replace("==", "-")
    for path in WHEELS.glob(f"{distribution}-*.whl"):
        return of_archive(zipfile.ZipFile(path))
    for path in ENVIRONMENTS.glob(f"python*/site-packages/{distribution}.dist-info"):
        return of_folder(path.parent)
    return None


def of_archive(archive: zipfile.ZipFile) -> Sources:
    names = frozenset(archive.namelist())
    return Sources(lambda path: archive.read(path) if path in names else None)


def of_folder(*folders: Path) -> Sources:
    """What is in these folders, of two files of one path that of the first."""

    def read(path: str) -> bytes | None:
        return next(((folder / path).read_bytes() for folder in folders if (folder / path).is_file()), None)

    return Sources(read)


class Module(NamedTuple):
    """A parsed module, with all that its top level defines, the later of two of one name."""

    name: str
    path: str
    tree: ast.Module
    defined: dict[str, ast.stmt]


class Found(NamedTuple):
    """What a name stands for: a definition in ``module``; ``node`` is the module itself where it is one."""

    module: Module
    node: ast.AST

    @property
    def place(self) -> str:
        return f"{self.module.path}:{getattr(self.node, 'lineno', 1)}"


class Sources:
    """The modules of a package, and of what comes in the same wheel."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.module = cache(self._module)
        self._library = cache(lambda path: read(path) or b"")

    def problem(self, module: str, text: str) -> str:
        """What is wrong with a line of the list; empty when it holds."""
        if module.endswith(".so"):
            return "" if ast.literal_eval(text).encode() + b"\0" in self._library(module) else f"{module} has it not"
        home = self.module(module)
        if home is None:
            return f"there is no module {module}"
        if text.startswith('"'):
            strings = {node.value for node in ast.walk(home.tree) if isinstance(node, ast.Constant)}
            return "" if ast.literal_eval(text) in strings else f"{home.path} has no such string"
        decorator, text = text.split(" ", 1) if text.startswith("@") else ("", text)
        name, bracket, inside = text.removeprefix("class ").partition("(")
        found = self.find(home, name)
        if found is None:
            return f"{home.path} has it not"
        if decorator and decorator[1:] not in map(ast.unparse, getattr(found.node, "decorator_list", ())):
            return f"{found.place} is no {decorator[1:]}"
        if not bracket:
            return ""
        inside = inside.removesuffix(")")
        if text.startswith("class "):
            bases = ", ".join(map(ast.unparse, getattr(found.node, "bases", ())))
            return "" if bases == inside else f"{found.place} has bases {bases or 'none'}"
        return self._call_problem(found, inside)

    def find(self, module: Module, name: str) -> Found | None:
        """What a dotted name in a module stands for; None when there is nothing of that name."""
        first, _, rest = name.partition(".")
        found = self._top(module, first)
        while found is not None and rest:
            first, _, rest = rest.partition(".")
            if isinstance(found.node, ast.ClassDef):
                found = self._member(found.module, found.node, first)
            else:
                found = self._top(found.module, first) if isinstance(found.node, ast.Module) else None
        return found

    def _module(self, name: str) -> Module | None:
        path = name.replace(".", "/")
        for candidate in (f"{path}/__init__.py", f"{path}.py"):
            text = self._read(candidate)
            if text is not None:
                tree = ast.parse(text)
                return Module(name, candidate, tree, dict(_definitions(tree.body)))
        return None

    def _top(self, module: Module, name: str) -> Found | None:
        node = module.defined.get(name)
        if isinstance(node, ast.Import | ast.ImportFrom):
            return self._imported(module, node, name)
        if node is not None:
            return Found(module, node)
        for star in (each for key, each in module.defined.items() if key.startswith("*")):
            assert isinstance(star, ast.ImportFrom)
            source = self.module(_origin(module, star))
            found = self._top(source, name) if source is not None else None
            if found is not None:
                return found
        inner = self.module(f"{module.name}.{name}")
        return Found(inner, inner.tree) if inner is not None else None

    def _imported(self, module: Module, node: ast.Import | ast.ImportFrom, name: str) -> Found:
        """What an import brings in; the import itself where that is another package's."""
        (alias,) = (each for each in node.names if name in (each.asname, each.name, each.name.partition(".")[0]))
        if isinstance(node, ast.Import):
            inner = self.module(alias.name if alias.asname else name)
            return Found(module, node) if inner is None else Found(inner, inner.tree)
        origin = _origin(module, node)
        inner = self.module(f"{origin}.{alias.name}")
        if inner is not None:
            return Found(inner, inner.tree)
        source = self.module(origin)
        return (source and source is not module and self._top(source, alias.name)) or Found(module, node)

    def _member(self, module: Module, owner: ast.ClassDef, name: str) -> Found | None:
        own = dict(_definitions(owner.body)).get(name)
        if own is not None:
            return Found(module, own)
        for node in ast.walk(owner):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == name:
                return Found(module, node)
        for base in owner.bases:
            above = self.find(module, ast.unparse(base)) if isinstance(base, ast.Name | ast.Attribute) else None
            if above is not None and isinstance(above.node, ast.ClassDef):
                found = self._member(above.module, above.node, name)
                if found is not None:
                    return found
        return None

    def _call_problem(self, found: Found, inside: str) -> str:
        wanted, open_ended = inside.removesuffix(", ..."), inside.endswith(", ...")
        expected = list(_parameters(ast.parse(f"def f({wanted}): ...").body[0].args))  # type: ignore[attr-defined]
        actual = self._callable(found)
        if actual is None:
            return f"{found.place} is nothing that is called"
        place, there = actual
        if not open_ended:
            return "" if there == expected else f"{place} is ({_text(there)})"
        names = [name for name, _, _ in expected]
        missing = [name for name in names if name not in [each for each, _, _ in there]]
        needed = [name for name, _, optional in there if not optional and name not in names]
        if missing or needed:
            return f"{place} is ({_text(there)})"
        return ""

    def _callable(self, found: Found) -> tuple[str, list[Parameter]] | None:
        """Where a function, or a class's constructor without ``self``, is defined, and its parameters."""
        node = found.node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return found.place, list(_parameters(node.args))
        if not isinstance(node, ast.ClassDef):
            return None
        for constructor in ("__init__", "__new__"):
            made = self._member(found.module, node, constructor)
            if made is not None and isinstance(made.node, ast.FunctionDef):
                return made.place, list(_parameters(made.node.args))[1:]
        return found.place, list(self._fields(found.module, node))

    def _fields(self, module: Module, owner: ast.ClassDef) -> Iterator[Parameter]:
        """Those of a dataclass or a named tuple, those that it inherits first."""
        for base in owner.bases:
            above = self.find(module, ast.unparse(base)) if isinstance(base, ast.Name | ast.Attribute) else None
            if above is not None and isinstance(above.node, ast.ClassDef):
                yield from self._fields(above.module, above.node)
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
                yield ast.unparse(node.target), "plain", node.value is not None


def _definitions(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """The names that statements define, and by what; imports of everything are named by star and module."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from ((each.id, node) for each in ast.walk(target) if isinstance(each, ast.Name))
        elif isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name.partition(".")[0], node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield (f"*{node.level}{node.module}" if alias.name == "*" else alias.asname or alias.name), node
        else:
            for field in ("handlers", "orelse", "body", "finalbody"):  # what is tried first counts
                yield from _definitions(getattr(node, field, ()))


def _origin(module: Module, node: ast.ImportFrom) -> str:
    """The full name of the module that an import is from."""
    if not node.level:
        return node.module or ""
    package = module.name if module.path.endswith("__init__.py") else module.name.rpartition(".")[0]
    parts = package.split(".")
    return ".".join(parts[: len(parts) - node.level + 1] + ([node.module] if node.module else []))


def _parameters(arguments: ast.arguments) -> Iterator[Parameter]:
    plain = arguments.posonlyargs + arguments.args
    without = len(plain) - len(arguments.defaults)
    yield from ((each.arg, "plain", number >= without) for number, each in enumerate(plain))
    if arguments.vararg is not None:
        yield arguments.vararg.arg, "*", True
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield each.arg, "keyword", default is not None
    if arguments.kwarg is not None:
        yield arguments.kwarg.arg, "**", True


def _text(parameters: Iterable[Parameter]) -> str:
    """Parameters as the list writes them."""
    words = []
    for name, kind, optional in parameters:
        if kind == "keyword" and not any(word.startswith("*") for word in words):
            words.append("*")
        words.append(f"{kind}{name}" if kind.startswith("*") else f"{name}=..." if optional else name)
    return ", ".join(words)
