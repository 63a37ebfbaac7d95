"""The commands that README and docs show beside those in console blocks, and which of them do not run in tests."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import click

from runtime.arguments import parse
from vppc.cli import COMMANDS, vppc

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

NOT_RUN: Mapping[str, str] = {
    r"^(\.venv/bin/)?(python -m )?(pip|venv)\b|^git clone|^source |^\. \.venv|scripts/(?!test|demo)": "it installs",
    r"scripts/(test|demo)|-m pytest|coverage (combine|report)": "it runs all tests, or the demo, or is about that",
    r"--device (npu|cuda)|here\.json|examples\.ascend|^ais_bench": "it needs NPUs or GPUs, or costs measured there",
    r"^docker|torch_npu": "it needs NPUs",
    r"--nnodes|--attach HOST|-m runtime plan\.json --tp 8": "it needs several nodes",
    r"-m benchmarks\.|-m examples\.paper|^vppc compare .*-o (paper|ablation)\.svg": "it measures or draws for minutes",
    r"^vppc tune ": "it searches for a minute; tests/test_tuning.py runs shorter ones",
    r"^vppc (verify plan\.json|diff out/tutorial)": "it reads what such a command has written",
    r"-m runtime (SCHEDULE|out/tutorial|plan\.json --device cpu)|^vppc (serve|doctor) ": "it starts ranks; tests do so",
    r"out/tiny": "it makes or needs a checkpoint; tests/test_tiny_checkpoint.py makes a smaller one",
    r"vllm|curl|out/(shadow|plan|lines)": "it needs vLLM; tests/test_vllm_*.py run its like",
    r"prof(/rank_0)?\b(?!ile)|profile DIR|trace\.json\.gz|cluster_step_trace_time": "it reads an Ascend profile",
    r"(h200|send_recv)\.csv": "it reads a published table",
}
"""By a pattern, why a command that it finds is not run."""
_PROGRAM = re.compile(
    r"vppc|vppc-run|python|torchrun|pip|git|curl|export|source|printf|until|for|\.|(\.venv/bin|scripts)/\S+"
)
_OPTION = re.compile(r"[a-z][\w./-]* (\S+ )*--?[A-Za-z]")
_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?:(?: {4}.*|)\n)+")
_INLINE = re.compile(r"`((?:vppc|vppc-run|torchrun|python -m|scripts/)[^`]* [^`]*)`")
_WRITTEN = ("console", "pycon", "json")
"""Blocks whose commands are run elsewhere, or that have none."""


def shown_commands(text: str) -> Iterator[str]:
    """The commands in the blocks of a page, fenced or indented, one by one and without what is said of them."""
    blocks = [found[3] for found in _FENCED.finditer(text) if found[2] not in _WRITTEN]
    blocks += _INDENTED.findall(_FENCED.sub("", text))
    for block in blocks:
        lines = iter(block.splitlines())
        for line in lines:
            command = re.sub(r" +#.*", "", line).strip()
            if not is_command(command):
                continue
            while command.endswith("\\") or _is_open(command):
                command = f"{command.removesuffix(chr(92))}\n{next(lines).strip()}"
            yield command.replace("\n", " ")


def inline_commands(text: str) -> list[str]:
    """The commands in the sentences of a page, which may be cut short."""
    return _INLINE.findall(_FENCED.sub("", text))


def is_command(line: str) -> bool:
    """Whether a line is for a shell: it begins with a program that is known here, or has words and then an option."""
    words = re.sub(r"^(\w+=\S* )+", "", line)
    return bool(_PROGRAM.fullmatch(words.split(" ")[0])) or bool(_OPTION.match(words))


def why_not_run(command: str) -> str | None:
    """The reason for which a command is not run; None if it is."""
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command)), None)


def unknown_names(command: str) -> Iterator[str]:
    """The commands of vppc, its options and the modules of Python that a command names, and that are not there."""
    words = command.split() if _is_open(command) else shlex.split(command)
    for index, word in enumerate(words):
        rest = [each.split("=")[0] for each in words[index + 1 : _end(words, index)]]
        if word == "vppc" and rest and re.fullmatch(r"[a-z][a-z-]+", rest[0]):
            if rest[0] not in COMMANDS:
                yield f"vppc {rest[0]}"
                continue
            yield from _unknown(rest, _options_of(rest[0]))
        elif word == "-m" and rest[0] == "runtime":
            yield from _unknown(rest, _options_of_a_run())
        elif word == "-m" and rest[0].startswith(("examples.", "benchmarks.")):
            if importlib.util.find_spec(rest[0]) is None:
                yield rest[0]
        elif word.startswith("scripts/") and not (ROOT / word).exists():
            yield word


def _is_open(command: str) -> bool:
    """Whether a quotation, or a loop, goes on in the next line."""
    try:
        shlex.split(command)
    except ValueError:
        return True
    return command.startswith(("for ", "until ")) and not command.endswith("done")


def _end(words: list[str], index: int) -> int:
    """Where a command of a pipe or a list ends."""
    return next((at for at in range(index, len(words)) if words[at] in ("|", "&&", ";", ">")), len(words))


def _unknown(words: list[str], known: set[str]) -> list[str]:
    return [word for word in words if re.match(r"--?[a-z]", word) and word not in known]


def _options_of(command: str) -> set[str]:
    found = vppc.get_command(click.Context(vppc), command)
    assert found is not None
    context = click.Context(found, parent=click.Context(vppc, help_option_names=["-h", "--help"]))
    return {name for each in found.get_params(context) for name in (*each.opts, *each.secondary_opts)}


def _options_of_a_run() -> set[str]:
    with redirect_stdout(StringIO()) as said, suppress(SystemExit):
        parse(["--help"])
    return set(re.findall(r"--?[a-z][a-z-]*", said.getvalue()))
