"""``python -m examples.ascend_proof``: on a node, from the links to a tuned plan that has run, with a report.

Each step is a command that is run, logged and timed. What is compared: the tokens on the device with those on the CPU,
runs with their predictions, and the paper's Tables 1 and 2 with the same prompt priced with the links measured here.
docs/ascend.md says how to read the report.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from vppc.files import write_text

ROOT = Path(__file__).parents[1]
PAPER = json.loads((ROOT / "examples" / "paper" / "numbers.json").read_text(encoding="utf-8"))
COST = ROOT / "examples" / "costs" / "deepseek-v3.1-910c-tp8.json"
BYTES_PER_TOKEN = 2 * 2 * 7168 // 8
"""Of DeepSeek-V3.1 on a channel: hidden states and residual in 16 bits, an eighth of them a TP rank."""
SMALL = {
    "format": "vppc.cost",
    "version": 1,
    "name": "small model, a guess",
    "layers": [{"count": 16, "fixed": 1e-4, "per_token": 1e-6, "per_pair": 1e-9}],
    "transfer": {"latency": 1e-5, "per_token": 1e-9},
}
"""What the small model's first plans are made with; only their orders depend on it."""
ENDING = 30.0
"""Seconds that a step has to end its processes when the proof is ended from outside."""
STRATEGIES = ("cpp", "vpp", "vpp-async")
QUICK = ("cpp", "vpp-async")
CRITICAL = {"cpp": 1, "dcpp": 1, "vpp-async": 0}
"""The rank of which the paper's tables are, of two."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is proven, where, and the folder of all that comes out.

    ``tokens`` are those of the longest prompt of the small model, ``max_bytes`` those of the largest transfer measured,
    None for the self-test's own. ``model`` is a checkpoint to run on vLLM's stages, None for none, in ``dtype``, with
    prompts of ``model_tokens`` at most. ``quick`` leaves out what costs are for.
    """

    folder: Path
    device: str
    pp: int
    tp: int
    tokens: int
    max_bytes: int | None
    timeout: float
    model: Path | None
    model_tokens: int
    dtype: str
    quick: bool = False

    @property
    def small_tp(self) -> int:
        """Processes a rank of the small model, which has few heads."""
        return min(self.tp, 2)

    @property
    def pretended(self) -> bool:
        """Whether its NPUs are no NPUs: those of a stand-in for torch_npu."""
        return self.device == "npu" and is_stand_in("torch_npu")


@dataclass(frozen=True, slots=True)
class Step:
    """A command that was run: its exit status, the seconds that it took, and what it printed."""

    name: str
    command: str
    status: int
    seconds: float
    output: str


@dataclass(frozen=True, slots=True)
class Run:
    """A run on the device: each prompt's first token, and where its time went, as ``vppc profile --json`` says it."""

    tokens: list[str]
    profile: dict[str, Any]

    @property
    def bubbles(self) -> str:
        """Of each rank, in percent of the run."""
        return ", ".join(f"{rank['bubble_ratio']:.1%}" for rank in self.profile["ranks"])


class Failed(Exception):
    """A step without which there is nothing more to say."""


class Proof:
    """Runs the steps in order and remembers them."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.steps: list[Step] = []
        self.doing = ""

    def vppc(self, name: str, *words: object, needed: bool = True) -> Step:
        """Run a command of vppc. Raises Failed when it does not end well, if that is ``needed``."""
        return self._step(name, ["-m", "vppc", *map(str, words)], needed)

    def tokens(self, name: str, plan: Path, device: str, tp: int, *options: str) -> list[str]:
        """Run a plan, on the small model unless ``options`` say otherwise; each prompt's first token."""
        s = self.setup
        words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={s.pp * tp}", "-m", "runtime"]
        words += [str(plan), f"--tp={tp}", f"--device={device}", f"--timeout={s.timeout:g}"]
        step = self._step(name, [*words, *options], needed=True)
        return [line.split()[1] for line in step.output.splitlines()[1:]]

    def run(self, name: str, plan: Path, tp: int, *options: str) -> Run:
        """Run a plan on the device, with a journal."""
        journal = self.setup.folder / f"journal-{name.replace(' ', '-')}"
        tokens = self.tokens(f"run {name}", plan, self.setup.device, tp, f"--journal={journal}", *options)
        return Run(tokens, json.loads(self.vppc(f"profile {name}", "profile", journal, "--json").output))

    def priced(self, name: str, plan: Path, cost: Path) -> dict[str, Any]:
        """What ``vppc simulate --json`` says of a plan."""
        return dict(json.loads(self.vppc(f"simulate {name}", "simulate", plan, "--cost", cost, "--json").output))

    def _step(self, name: str, words: Sequence[str], needed: bool) -> Step:
        click.echo(f"{name} ..", err=True)
        self.doing = name
        begun = time.monotonic()
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        status, stdout, stderr = ran([sys.executable, *words], environment)
        seconds = time.monotonic() - begun
        step = Step(name, shlex.join(["python", *words]), status, seconds, stdout)
        self.steps.append(step)
        log = self.setup.folder / "logs" / f"{len(self.steps):02}-{name.replace(' ', '-')}.txt"
        write_text(str(log), f"$ {step.command}\n{stdout}{stderr}")
        if needed and step.status:
            raise Failed(f"{name} ended with status {step.status}: {last_line(stderr)} (all of it: {log})")
        return step


def is_stand_in(module: str) -> bool:
    """Whether a module says of itself, in its version, that it is a stand-in. It is read and not imported."""
    found = find_spec(module)
    if found is None or found.origin is None:
        return False
    return re.search(r'^__version__ = ".*\+standin"', Path(found.origin).read_text("utf-8"), re.MULTILINE) is not None


def ran(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
    """A command's exit status, and what it wrote to stdout and stderr. When this program is ended, so is it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate()
        except BaseException:
            process.terminate()
            try:
                process.communicate(timeout=ENDING)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, stdout, stderr


def leave(number: int, _: object) -> None:
    """SIGTERM ends the program as an exception does."""
    sys.exit(128 + number)


def last_line(text: str) -> str:
    """The line that says what is wrong: vppc's own where there is one."""
    lines = [line for line in text.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("vppc") and "problem: " not in line]
    return (own or lines or ["it said nothing"])[0 if own else -1]


def prove(proof: Proof) -> Iterator[str]:
    """Runs all steps; yields the report's sections as they are known. Raises Failed."""
    s = proof.setup
    links = s.folder / "links.json"
    doctor = ["doctor", "--pp", s.pp * s.tp, "--device", s.device, "--timeout", s.timeout, "--json"]
    priced_with = ["--cost", COST, "--bytes-per-token", BYTES_PER_TOKEN, "-o", links]
    largest = [] if s.max_bytes is None else ["--max-bytes", s.max_bytes]
    found = json.loads(proof.vppc("doctor", *doctor, *priced_with, *largest).output)
    yield links_section(found, s.pretended)

    guess = s.folder / "guess.json"
    guess.write_text(json.dumps(SMALL), encoding="utf-8")
    prompts = ["--tokens", s.tokens, "--tokens", s.tokens // 2]
    plans = {name: s.folder / f"{name}.json" for name in (QUICK if s.quick else STRATEGIES)}
    for name, plan in plans.items():
        how = ["--strategy", name, "--chunk-size", s.tokens // 6, "--cost", guess]
        proof.vppc(f"compile {name}", "compile", "--pp", s.pp, *prompts, *how, "-o", plan)
    expected = proof.tokens("tokens on the CPU", plans["cpp"], "cpu", s.small_tp)
    runs = {name: proof.run(name, plan, s.small_tp) for name, plan in plans.items()}
    if s.quick:
        yield runs_section(expected, runs, None)
    else:
        yield runs_section(expected, runs, tune(proof, guess, prompts, plans, runs))
        yield paper_section(proof, links)
    wrong = [name for name, run in runs.items() if run.tokens != expected]
    if wrong:
        raise Failed(f"the tokens of {', '.join(wrong)} on {s.device} are not those on the CPU")
    if s.model is not None:
        yield from prove_stages(proof, s.model)


def tune(
    proof: Proof, guess: Path, prompts: Sequence[object], plans: dict[str, Path], runs: dict[str, Run]
) -> dict[str, float]:
    """Fit costs to the runs, tune a plan with them, and run that, too, which goes to the others. What all of them were
    predicted to take, in seconds; nothing where the times fit no costs. Raises Failed."""
    s = proof.setup
    fitted, tuned = s.folder / "measured.json", s.folder / "tuned.json"
    journals = [s.folder / f"journal-{name}" for name in STRATEGIES]
    # a machine that does other things may have times that fit nothing: that is said, and nothing is tuned
    calibrated = proof.vppc("calibrate", "calibrate", *journals, "--base", guess, "-o", fitted, needed=False)
    if calibrated.status:
        return {}
    limits = ["--placement", "v", "--vp", 2, "--effort", 0.5]
    proof.vppc("tune", "tune", "--pp", s.pp, *prompts, "--cost", fitted, *limits, "-o", tuned)
    plans["tuned"], runs["tuned"] = tuned, proof.run("tuned", tuned, s.small_tp)
    return {name: proof.priced(name, plan, fitted)["makespan"] for name, plan in plans.items()}


def prove_stages(proof: Proof, model: Path) -> Iterator[str]:
    """A checkpoint on vLLM's stages: whatever the plan, the same tokens. Raises Failed."""
    s = proof.setup
    options = ["--runner=vllm", f"--model={model}", f"--dtype={s.dtype}"]
    runs = {}
    for name in STRATEGIES:
        plan = s.folder / f"vllm-{name}.json"
        longest = s.model_tokens
        how = ["--tokens", longest, "--tokens", longest // 2, "--strategy", name, "--chunk-size", longest // 6]
        proof.vppc(f"compile vllm {name}", "compile", "--pp", s.pp, "--tp", s.tp, "--model", model, *how, "-o", plan)
        runs[name] = proof.run(f"vllm {name}", plan, s.tp, *options)
    expected = runs["cpp"].tokens
    yield stages_section(model.name, runs)
    wrong = [name for name, run in runs.items() if run.tokens != expected]
    if wrong:
        raise Failed(f"on vLLM's stages the tokens of {', '.join(wrong)} are not those of cpp")


def stages_section(model: str, runs: dict[str, Run]) -> str:
    """The runs of a checkpoint on vLLM's stages."""
    expected = runs["cpp"].tokens
    rows = [
        [
            name,
            f"{' '.join(run.tokens)} ({'equal' if run.tokens == expected else '**not equal**'})",
            f"{run.profile['makespan']:.4g} s",
            run.bubbles,
        ]
        for name, run in runs.items()
    ]
    said = "The straight pipeline's tokens are what the others are held against: one stage a rank, as vLLM itself runs."
    headers = ["plan", "first tokens", "measured", "bubble of each rank"]
    return f"## {model} on vLLM's stages\n\n{said}\n\n{table(headers, rows)}"


def title(setup: Setup) -> str:
    """What was proven, and where."""
    where = "pretended NPUs, which are this machine's CPUs" if setup.pretended else setup.device
    return f"# Proof on {where}: {setup.pp} ranks of {setup.tp}"


def links_section(doctor: dict[str, Any], pretended: bool = False) -> str:
    """What the self-test found, on NPUs that may be ``pretended``."""
    processes, channels = doctor["processes"], doctor["channels"]
    slowest = min(channels, key=lambda each: each["bandwidth"])
    settings = [f"{each['name']} {each['problem']}" for each in doctor["settings"] if each["problem"]]
    lines = [
        f"* {len(processes)} x {processes[0]['device']}{', pretended' if pretended else ''}",
        "* " + ", ".join(f"{each['name']} {each['version']}" for each in processes[0]["packages"] if each["version"]),
        f"* slowest of {len(channels)} channels: {slowest['src']} -> {slowest['dst']}, "
        f"{slowest['latency'] * 1e6:.1f} us and {slowest['bandwidth'] / 1e9:.2f} GB/s; "
        f"all at once {slowest['bandwidth_all_at_once'] / 1e9:.2f} GB/s",
        f"* compute takes {doctor['interference']:.1%} longer beside transfers",
    ]
    if pretended:
        lines.append("* **stand-ins** say what device, CANN and vLLM-Ascend these are; all times are those of CPUs")
    if processes[0]["communicators"] is not None:
        took, counted = (processes[0][key] for key in ("communicators", "counted"))
        said = "" if counted is None else f", {counted / 2**20:.0f} MiB counted"
        lines.append(f"* communicators took {took / 2**20:.0f} MiB of device memory{said}")
    return "\n".join(["## Machine and links", "", *lines, *(f"* **problem**: {each}" for each in settings)])


def runs_section(expected: list[str], runs: dict[str, Run], predicted: dict[str, float] | None) -> str:
    """The runs of the small model: tokens, times, bubbles; ``predicted`` is None where nothing was to be."""
    rows = [
        [
            name,
            f"{' '.join(run.tokens)} ({'equal' if run.tokens == expected else '**not equal**'})",
            f"{predicted[name]:.4g} s" if predicted and name in predicted else "",
            f"{run.profile['makespan']:.4g} s",
            run.bubbles,
        ]
        for name, run in runs.items()
    ]
    headers = ["plan", "first tokens", "predicted", "measured", "bubble of each rank"]
    said = f"On the CPU the straight pipeline's first tokens are {' '.join(expected)}."
    if predicted:
        said += " Predicted is with the costs that were fitted to the first three runs; `tuned` was not among them."
    elif predicted is not None:
        said += " The times of these runs fit no cost file (logs, `calibrate`), so nothing was predicted or tuned."
    return f"## The small model on the device\n\n{said}\n\n{table(headers, rows)}"


def paper_section(proof: Proof, links: Path) -> str:
    """512K tokens of DeepSeek-V3.1 in chunks of 24K: the paper's, and priced with the links measured here."""
    theirs = {
        "cpp": PAPER["table_1"]["cpp"],
        "dcpp": PAPER["table_1"]["dcpp"],
        "vpp-async": PAPER["table_2"]["vpp"],
    }
    tokens, chunk = PAPER["table_1"]["tokens"], PAPER["table_1"]["chunk"]
    rows = []
    for name, paper in theirs.items():
        plan = proof.setup.folder / f"paper-{name}.json"
        how = ["--strategy", name, "--chunk-size", chunk, "--cost", links]
        proof.vppc(f"compile paper {name}", "compile", "--pp", 2, "--tokens", tokens, *how, "-o", plan)
        priced = proof.priced(f"paper {name}", plan, links)
        rank = priced["ranks"][CRITICAL[name]]
        rows.append(
            [
                name,
                f"{paper['total']:.1f} s",
                f"{priced['makespan']:.1f} s",
                f"{paper['bubble'] / paper['total']:.1%}",
                f"{rank['bubble_ratio']:.1%}",
                f"{paper['exposed_communication']:.1f} s",
                f"{rank['collective'] + rank['exposed_transfer']:.1f} s",
            ]
        )
    headers = ["", "paper, total", "priced", "paper, bubble", "priced", "paper, exposed communication", "priced"]
    return (
        "## The paper's Tables 1 and 2: DeepSeek-V3.1, 512K tokens in chunks of 24K, two ranks of TP8\n\n"
        + table(headers, rows)
        + "\n\nPriced, not run: the layers' costs are those of examples/costs, derived from the paper; transfers and "
        "their interference are those measured here. The paper's totals have communication of TP and EP in them, "
        "which these costs leave out."
    )


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/ascend"),
    show_default=True,
    help="A folder that is new or empty.",
)
@click.option("--device", type=click.Choice(("npu", "cuda", "cpu")), default="npu", show_default=True)
@click.option("--pp", type=click.IntRange(2, 64), default=2, show_default=True, help="Pipeline ranks.")
@click.option(
    "--tp", type=click.IntRange(1), default=1, show_default=True, help="Processes a rank; 2 at most of the small model."
)
@click.option(
    "--tokens", type=click.IntRange(12), default=1536, show_default=True, help="Of the small model's longer prompt."
)
@click.option(
    "--max-bytes", type=click.IntRange(4096), help="Of the largest transfer measured. [default: 64 MiB; CPU 8 MiB]"
)
@click.option("--model", type=click.Path(path_type=Path), help="A checkpoint folder to run on vLLM's stages, too.")
@click.option("--model-tokens", type=click.IntRange(12), default=49152, show_default=True, help="Of its longer prompt.")
@click.option("--dtype", default="bfloat16", show_default=True, help="Of that checkpoint.")
@click.option("--quick", is_flag=True, help="Only the links and two plans: whether it runs, and right.")
@click.option("--timeout", type=click.FloatRange(0.5), default=60.0, show_default=True, help="Seconds to a fault.")
def command(output: Path, **options: Any) -> None:
    """Prove vppc's runtime on this machine, and write OUTPUT/report.md.

    Exit status: 0 when every step ended well and all tokens are equal, also where the times of the runs fit no costs,
    which the report says; 143 when SIGTERM ended it, 130 when Ctrl-C did, 1 otherwise. The report is written in any
    case, and no process is left.
    """
    folder = output.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise click.UsageError(f"-o: {output} is not empty; name another folder, or remove it")
    (folder / "logs").mkdir(parents=True)
    proof = Proof(Setup(folder, **options))
    sections = [title(proof.setup)]
    status, failure = 0, ""
    signal.signal(signal.SIGTERM, leave)
    try:
        sections.extend(prove(proof))
    except Failed as failed:
        status, failure = 1, f"failed: {failed}"
        sections.append(f"## It failed\n\n{failed}")
    except (SystemExit, KeyboardInterrupt) as ended:
        status = int(ended.code or 1) if isinstance(ended, SystemExit) else 128 + signal.SIGINT
        failure = f"ended from outside, during {proof.doing}"
        sections.append(f"## It was ended from outside\n\nDuring the step {proof.doing}.")
    steps = [[step.name, str(step.status), f"{step.seconds:.1f} s", f"`{step.command}`"] for step in proof.steps]
    sections.append("## Steps\n\n" + table(["step", "status", "took", "command"], steps))
    report = folder / "report.md"
    write_text(str(report), "\n\n".join(sections) + "\n")
    click.echo(str(report))
    if failure:
        click.echo(failure, err=True)
    sys.exit(status)


if __name__ == "__main__":
    command()
