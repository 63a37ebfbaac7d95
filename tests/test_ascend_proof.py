"""The proof for a node, end to end: on CPUs it ends well, and where something is missing its report says what."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from examples.ascend_proof import (
    Failed,
    Proof,
    Run,
    Setup,
    Step,
    is_stand_in,
    links_section,
    prove_stages,
    runs_section,
)

pytest.importorskip("torch", reason="the runtime needs torch")

ROOT = Path(__file__).parents[1]


def prove(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.ascend_proof", "-o", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)


def statuses(report: str) -> dict[str, int]:
    """Exit statuses of the steps by name."""
    return {
        name: int(status) for name, status in re.findall(r"^\| ([^|]+) \| (\d+) \| [\d.]+ s \|", report, re.MULTILINE)
    }


def running(word: str) -> list[str]:
    """The command lines on this machine with that word, of processes that are not over."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            found += [line] if word in line else []
    return found


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc to look at processes")
def test_ended_from_outside_it_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM while two processes measure links: their launcher and they end, and every file that is there is whole."""
    folder = tmp_path / "proof"
    command = [
        sys.executable,
        "-m",
        "examples.ascend_proof",
        "-o",
        str(folder),
        "--device",
        "cpu",
        "--timeout",
        "47.25",
    ]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as proof:
        try:
            until(lambda: len(running("47.25")) >= 4)  # the proof, the doctor, and its two processes
        finally:
            proof.terminate()
        _, said = proof.communicate(timeout=120)
    assert proof.returncode == 143
    assert said.splitlines()[-1] == "ended from outside, during doctor"
    assert "## It was ended from outside\n\nDuring the step doctor." in (folder / "report.md").read_text()
    until(lambda: running("47.25") == [])
    assert sorted(each.name for each in folder.rglob("*")) == ["logs", "report.md"]


def until(done: Callable[[], bool]) -> None:
    """Wait for it; what never comes is a failure of the whole test by its own limit."""
    for _ in range(2400):
        if done():
            return
        time.sleep(0.05)
    raise AssertionError("it has not come to that")


@pytest.mark.slow
def test_on_pretended_npus_it_goes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tokens are held against those of CPUs, as those of real ones; the quick way."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "standins"))
    monkeypatch.setenv("STANDIN_TENSORS", "cpu")
    folder = tmp_path / "proof"
    ended = prove(folder, "--quick", "--tokens", "120", "--max-bytes", "16384")
    assert ended.returncode == 0, ended.stderr
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert set(statuses(report).values()) == {0}
    assert report.startswith("# Proof on pretended NPUs, which are this machine's CPUs: 2 ranks of 1\n")
    assert "* 2 x Ascend910_9382, 64.0 GiB, pretended\n" in report
    assert "* **stand-ins** say what device, CANN and vLLM-Ascend these are" in report
    assert "* communicators took" in report and "80 MiB counted" in report
    runs = re.findall(r"^\| (\S+) \| (\d+ \d+) \((.*?)\)", report, re.MULTILINE)
    assert runs == [(name, runs[0][1], "equal") for name in ("cpp", "vpp-async")]
    assert "--device=npu" in report and "--device=cpu" in report


@pytest.mark.slow
def test_on_cpus_it_goes_through(tmp_path: Path) -> None:
    folder = tmp_path / "proof"
    ended = prove(folder, "--device", "cpu", "--tokens", "120", "--max-bytes", "16384")
    assert ended.returncode == 0, ended.stderr
    report = (folder / "report.md").read_text(encoding="utf-8")
    ran = statuses(report)
    assert ran.pop("calibrate") in (0, 1)  # a busy machine's times may fit nothing, which is said
    assert set(ran.values()) == {0}
    runs = re.findall(r"^\| (\S+) \| (\d+ \d+) \((.*?)\) \| (\S*)", report, re.MULTILINE)
    assert [name for name, *_ in runs][:3] == ["cpp", "vpp", "vpp-async"]
    assert {(tokens, said) for _, tokens, said, _ in runs} == {(runs[0][1], "equal")}
    assert ("tuned" in dict.fromkeys(name for name, *_ in runs)) == ("fit no cost file" not in report)
    assert "| cpp | 307.9 s |" in report and "| vpp-async | 281.9 s |" in report
    assert len(list((folder / "logs").iterdir())) == len(ran) + 1


def test_a_module_is_a_stand_in_when_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "npus_real.py").write_text('__version__ = "2.10.0.post4"  # no +standin\n')
    (tmp_path / "npus_pretended.py").write_text('import nothing\n__version__ = "2.10.0+standin"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    said = [is_stand_in(name) for name in ("npus_real", "npus_pretended", "npus_missing")]
    assert said == [False, True, False]


@pytest.mark.skipif(find_spec("torch_npu") is not None, reason="this machine has torch_npu")
def test_without_npus_the_report_says_what_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "proof"
    ended = prove(folder)
    assert ended.returncode == 1
    assert "an NPU needs torch_npu, which is not installed" in ended.stderr
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert report.startswith("# Proof on npu: 2 ranks of 1\n")
    assert "## It failed\n\ndoctor ended with status" in report
    assert list(statuses(report)) == ["doctor"]


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("mine")
    ended = prove(tmp_path)
    assert ended.returncode == 2
    assert "is not empty" in ended.stderr
    assert (tmp_path / "report.md").read_text() == "mine"


def test_what_the_self_test_found_on_npus_is_told() -> None:
    process = {
        "device": "Ascend910_9382, 64.0 GiB",
        "packages": [{"name": "torch", "version": "2.10.0"}, {"name": "vllm", "version": None}],
        "communicators": 84 * 2**20,
        "counted": 80 * 2**20,
    }
    channel = {"src": 0, "dst": 1, "latency": 2e-5, "bandwidth": 9e10, "bandwidth_all_at_once": 7.5e10}
    doctor = {
        "processes": [process] * 2,
        "channels": [channel, {**channel, "src": 1, "dst": 0, "bandwidth": 7e10}],
        "interference": 0.0312,
        "settings": [{"name": "TASK_QUEUE_ENABLE", "problem": "launching takes longer"}, {"name": "X", "problem": ""}],
    }
    assert links_section(doctor).splitlines() == [
        "## Machine and links",
        "",
        "* 2 x Ascend910_9382, 64.0 GiB",
        "* torch 2.10.0",
        "* slowest of 2 channels: 1 -> 0, 20.0 us and 70.00 GB/s; all at once 75.00 GB/s",
        "* compute takes 3.1% longer beside transfers",
        "* communicators took 84 MiB of device memory, 80 MiB counted",
        "* **problem**: TASK_QUEUE_ENABLE launching takes longer",
    ]


def test_tokens_that_differ_are_shown() -> None:
    runs = {name: Run(tokens, {"makespan": 2.0, "ranks": [{"bubble_ratio": 0.125}, {"bubble_ratio": 0.0}]})
            for name, tokens in (("cpp", ["7", "9"]), ("vpp", ["7", "8"]))}  # fmt: skip
    shown = runs_section(["7", "9"], runs, {"cpp": 1.5})
    assert "| cpp | 7 9 (equal) | 1.5 s | 2 s | 12.5%, 0.0% |" in shown
    assert "| vpp | 7 8 (**not equal**) |  | 2 s | 12.5%, 0.0% |" in shown


def test_a_checkpoint_on_vllms_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its three runs are asked for with vLLM's stages; one whose tokens are others ends the proof."""
    asked: list[str] = []

    def step(self: Proof, name: str, words: list[str], needed: bool) -> Step:
        asked.append(" ".join(words))
        tokens = "r0 8\nr1 9\n" if name == "run vllm vpp" else "r0 7\nr1 9\n"
        profile = '{"makespan": 2.0, "ranks": [{"bubble_ratio": 0.5}, {"bubble_ratio": 0.0}]}'
        return Step(name, "", 0, 1.0, profile if name.startswith("profile") else f"request token\n{tokens}")

    monkeypatch.setattr(Proof, "_step", step)
    model = tmp_path / "deepseek"
    proof = Proof(Setup(tmp_path, "npu", 2, 8, 1536, None, 60.0, model, 49152, "bfloat16"))
    sections = prove_stages(proof, model)
    shown = next(sections)
    assert shown.startswith("## deepseek on vLLM's stages")
    assert "| vpp | 8 9 (**not equal**) | 2 s | 50.0%, 0.0% |" in shown
    assert "| vpp-async | 7 9 (equal) | 2 s | 50.0%, 0.0% |" in shown
    with pytest.raises(Failed, match="on vLLM's stages the tokens of vpp are not those of cpp"):
        next(sections)
    compiled, run, _ = asked[:3]
    assert "compile --pp 2 --tp 8" in compiled and f"--model {model} --tokens 49152 --tokens 24576" in compiled
    assert "--nproc-per-node=16" in run and "--runner=vllm" in run and "--dtype=bfloat16" in run
