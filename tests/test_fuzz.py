"""No damaged file ends a command in a traceback, a hang or all of the memory."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz_targets import TARGETS
from tests.fuzzing import attempt, damaged, limits
from vppc.cli import main
from vppc.errors import InputError
from vppc.files import LONGEST_LINE
from vppc.profiles import events

ROOT = Path(__file__).resolve().parents[1]

EXAMPLES = 60


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_is_read(name: str, tmp_path: Path) -> None:
    for seed in TARGETS[name].seeds:
        assert attempt(TARGETS[name], seed, tmp_path)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_accepted_or_refused_in_words(name: str, tmp_path: Path) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(damaged(TARGETS[name].seeds))
    def refuse(data: bytes) -> None:
        attempt(TARGETS[name], data, tmp_path)

    refuse()


CLAIMS: dict[str, tuple[str, bytes, str]] = {
    "a line without end in a packed table": (
        "step trace",
        gzip.compress(bytes(LONGEST_LINE), 1, mtime=0),
        "line 1: is 64 MiB long, or longer",
    ),
    "nested a hundred thousand levels deep": ("trace", b"[" * 100_000, "nested too deeply"),
    "a journal's line nested as deep": (
        "journal",
        TARGETS["journal"].seeds[0].split(b"\n")[0] + b"\n" + b"[" * 100_000,
        "nested too deeply",
    ),
    "a processor in a billion": (
        "journal",
        TARGETS["journal"].seeds[0].replace(b'"tp_rank": 0', b'"tp_rank": 1000000000'),
        "1000000000 is no tp_rank",
    ),
    "two billion prompts in a batch": (
        "measurements",
        b"isl,step,latency,batch_size\n1024,0,1.5,2147483647\n",
        '"2147483647" is too large',
    ),
    "a billion buffers": (
        "schedule",
        re.sub(rb'"buffers": \d+', b'"buffers": 1000000000', TARGETS["schedule"].seeds[0]),
        "1000000000 is too large",
    ),
    "a number of four hundred digits": (
        "communication",
        re.sub(rb'("Wait Time\(ms\)": )[0-9.]+', rb"\g<1>" + b"9" * 400, TARGETS["communication"].seeds[0]),
        "is not a time",
    ),
    "a number of five thousand digits": ("trace", b'[{"ts": ' + b"9" * 5000 + b"}]", "thousands of digits"),
    "a category that is a list": ("trace", b'[{"ph": "X", "cat": [], "name": "x"}]', "a list is not a category"),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_a_small_file_cannot_ask_for_all_memory(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, data, message = CLAIMS[case]
    target = TARGETS[name]
    for beside, content in target.beside.items():
        (tmp_path / beside).write_bytes(content)
    (tmp_path / target.name).write_bytes(data)
    command = {"measurements": "calibrate", "schedule": "verify"}.get(name, "profile")
    with limits(), pytest.raises(SystemExit, match="2"):
        main([command, str(tmp_path if name == "journal" else tmp_path / target.name)])
    assert message in capsys.readouterr().err


def test_a_value_of_a_trace_without_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(events, "_READ", 1 << 10)
    monkeypatch.setattr(events, "_MOST", 1 << 16)
    (tmp_path / "trace.json").write_text('{"a": [' + "0, " * (1 << 16))
    with pytest.raises(InputError, match="a value is longer"):
        list(events.read_events(str(tmp_path / "trace.json")))


def test_no_reader_runs_code() -> None:
    """Files are JSON, CSV and safetensors, and what processes tell each other is JSON."""
    forbidden = re.compile(
        r"\b(pickle|cPickle|dill|cloudpickle|marshal|shelve|joblib)\b|yaml\.|torch\.load|np\.load|numpy\.load"
        r"|trust_remote_code\s*=\s*True|(?<![.\w])(eval|exec|__import__)\("
    )
    found = {
        str(file.relative_to(ROOT)): match[0]
        for folder in ("vppc", "runtime")
        for file in sorted((ROOT / folder).rglob("*.py"))
        if (match := forbidden.search(file.read_text(encoding="utf-8")))
    }
    assert found == {}
