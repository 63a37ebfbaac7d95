"""vLLM's OpenAI server with the flag: right completions to everybody, whoever else comes, is slow, or goes away."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from test_vllm_runner import LAYERS, MODELS, SLIDING, needs_vllm, write_checkpoint
from vllm_runs import ENVIRONMENT, ROOT, TOKENS
from worlds import eventually, free_port

from vppc.costs.document import cost_json
from vppc.costs.model import CostModel, LayerCost

pytestmark = needs_vllm
START = 300.0
"""Seconds until a server must be up; alone on a machine it takes a tenth of that."""
RANGES = [[[0, 1], [15, LAYERS]], [[1, 4], [13, 15]], [[4, 6], [10, 13]], [[6, 8], [8, 10]]]
"""Of the folded server's ranks; the first stage has no layer with a window."""
RANKS = len(RANGES)


class Server(NamedTuple):
    """A running server: its process, its port, and what it has written."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def ask(self, prompt: list[int], tokens: int, *, stream: bool = False) -> HTTPConnection:
        """Send a request for greedy tokens."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=START)
        asked = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream}
        body = json.dumps({**asked, "ignore_eos": True, "return_token_ids": True})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        return connection

    def complete(self, prompt: list[int]) -> list[int]:
        with closing(self.ask(prompt, TOKENS)) as connection:
            answer = json.loads(connection.getresponse().read())
        tokens: list[int] = answer["choices"][0]["token_ids"]
        return tokens

    def stream(self, prompt: list[int], *, tokens: int = TOKENS, pause: float = 0.0, leave: bool = False) -> list[int]:
        """The tokens as they come; who leaves, closes the connection after the first."""
        got: list[int] = []
        with closing(self.ask(prompt, tokens, stream=True)) as connection, connection.getresponse() as response:
            for line in response:
                if line.startswith(b"data: {"):
                    got += json.loads(line[6:])["choices"][0]["token_ids"]
                    time.sleep(pause)
                    if leave:
                        break
        return got

    def give_up(self, prompt: list[int]) -> None:
        """Ask, and be gone before there is a token."""
        with closing(self.ask(prompt, 1000, stream=True)):
            time.sleep(0.05)

    def asked(self, prompt: list[int], tokens: int) -> int:
        """The status of an answer."""
        with closing(self.ask(prompt, tokens)) as connection:
            return connection.getresponse().status

    def healthy(self) -> bool:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=5.0)) as connection:
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
            except OSError:
                return False

    def openai(self, prompts: list[list[int]]) -> list[list[list[int]]]:
        """Of each prompt the tokens that OpenAI's client gets, whole and streamed."""
        client = [ENVIRONMENT / "bin/python", ROOT / "tests/openai_client.py", str(self.port)]
        done = subprocess.run(client, input=json.dumps(prompts), capture_output=True, text=True, timeout=START)
        assert done.returncode == 0, done.stderr
        answers: list[list[list[int]]] = json.loads(done.stdout)
        return answers

    def metrics(self) -> dict[str, float]:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=START)) as connection:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        shown = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(number) for name, _, number in shown}

    def workers(self) -> list[int]:
        """The processes of its ranks, in their order."""
        parents, titles = {}, {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended in this moment
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                titles[int(folder.name)] = (folder / "cmdline").read_text()
        family = {self.process.pid}
        while grown := {each for each, parent in parents.items() if parent in family} - family:
            family |= grown
        return sorted((each for each in family if "VLLM::Worker" in titles.get(each, "")), key=titles.__getitem__)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write_checkpoint(tmp_path_factory.mktemp("model"), MODELS["llama"])
    (folder / "config.json").write_text(json.dumps({**MODELS["llama"], **SLIDING}))
    return str(folder)


@contextmanager
def serving(checkpoint: str, folder: Path, *more: str) -> Iterator[Server]:
    """vLLM's server, with the plugin installed, and ``more`` options."""
    folder.mkdir()
    port, log = free_port(), folder / "log"
    options = ["--model", checkpoint, "--served-model-name", "m", "--port", str(port), "--skip-tokenizer-init"]
    options += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "2048", "--max-num-batched-tokens", "128"]
    quiet = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    small = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    # sockets are made in the folder for temporary files, and their paths may be no longer than 107 characters
    with log.open("wb") as file, TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        process = subprocess.Popen(
            [ENVIRONMENT / "bin/python", "-m", "vllm.entrypoints.openai.api_server", *options, *more],
            cwd=ROOT,
            env={**os.environ, **quiet, **small, "TMPDIR": temporary},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            started = Server(process, port, log)
            deadline = time.monotonic() + START
            while not started.healthy():
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            yield started
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_server_with_and_without_the_flag(checkpoint: str, tmp_path: Path) -> None:
    random = Random(0)
    prompts = [[random.randrange(300) for _ in range(random.choice((3, 40, 130, 300, 700)))] for _ in range(10)]
    with serving(checkpoint, tmp_path / "stock") as stock:
        answers = stock.openai(prompts)
        assert not any(name.startswith("vppc") for name in stock.metrics())
    assert all(tokens == streamed and len(tokens) == TOKENS for tokens, streamed in answers)
    cost = CostModel((LayerCost(LAYERS, per_token=1e-5),))
    (tmp_path / "cost.json").write_text(json.dumps(cost_json(cost)))
    section = {"chunks": [100, 80, 60, 60], "costs": str(tmp_path / "cost.json"), "silence": 8}
    flag = json.dumps({"virtual_pipeline_parallel_size": 2, "vpp_layer_ranges": RANGES, "vppc": section})
    options = ["-pp", str(RANKS), "--additional-config", flag, "--max-num-seqs", "32"]
    options += ["--middleware", f"runtime.vllm_plugin.waiting.AtMost{50 - 32}"]
    with serving(checkpoint, tmp_path / "folded", *options) as folded:
        assert folded.openai(prompts) == answers
        answers_everybody(folded, prompts, [tokens for tokens, _ in answers])
        shows_what_it_did(folded, prompts[0])
        refuses_who_is_too_many(folded)
        ends_with_its_workers(folded)


def shows_what_it_did(server: Server, prompt: list[int]) -> None:
    """Everything is answered: nothing is in flight, each rank was busy and idle, and has taken other than planned."""
    drifts = {f'vppc_rank_plan_drift{{rank="{rank}"}}' for rank in range(RANKS)}

    def settled() -> dict[str, float] | None:
        shown = server.metrics()
        if shown["vppc_chunks_in_flight"] == 0.0 and drifts <= shown.keys():
            return shown
        server.complete(prompt)  # of costs that have just been fitted anew nothing is known yet
        return None

    shown = eventually(settled)
    active = shown["vppc_active_seconds_total"]
    for rank in map(str, range(RANKS)):
        busy = shown[f'vppc_rank_busy_seconds_total{{rank="{rank}"}}']
        assert 0.0 < busy < active
        assert shown[f'vppc_rank_bubble_ratio{{rank="{rank}"}}'] == pytest.approx(1.0 - busy / active)
    assert all(shown[name] > -1.0 for name in drifts)


def answers_everybody(server: Server, prompts: list[list[int]], expected: list[list[int]]) -> None:
    """Alone, streamed, and 50 at once, with slow readers and clients that vanish in the middle of a prompt and of an
    answer: what stock vLLM makes, always."""
    assert [server.complete(prompt) for prompt in prompts] == expected
    assert [server.stream(prompt) for prompt in prompts] == expected

    def client(number: int) -> list[int]:
        prompt = prompts[number % 10]
        match number // 10:
            case 0:
                server.give_up([*prompt, *[number] * 1000])
                return server.stream(prompt, tokens=1000, leave=True)[:1]
            case 1:
                return server.stream(prompt, pause=0.1)
            case 2:
                return server.stream(prompt)
        return server.complete(prompt)

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(client, range(50)))
    assert answers == [*([tokens[0]] for tokens in expected), *expected * 4]
    assert server.complete(prompts[0]) == expected[0]


def refuses_who_is_too_many(server: Server) -> None:
    """50 are open, and wait for their tokens: the next one is told at once, and let in when they have gone."""
    with ExitStack() as clients:
        for _ in range(50):
            response = clients.enter_context(closing(server.ask([1, 2, 3], 1900, stream=True))).getresponse()
            assert response.status == 200
        with closing(server.ask([1, 2, 3], 1)) as refused:
            answer = refused.getresponse()
            assert (answer.status, answer.getheader("Retry-After")) == (503, "1")
            assert json.loads(answer.read())["error"]["message"] == "18 requests wait, and 18 may"
    eventually(lambda: server.asked([1, 2, 3], 1) == 200 or None)


def ends_with_its_workers(server: Server) -> None:
    """One is stopped: the others notice, and end the server, as when it had died, and who waits for it."""
    with closing(server.ask([1, 2, 3], 1900, stream=True)) as connection, connection.getresponse() as response:
        response.readline()
        workers = server.workers()
        assert len(workers) == RANKS
        os.kill(workers[2], signal.SIGSTOP)
        assert '"code": 500' in response.read().decode()
    eventually(lambda: server.process.poll() is not None or None)
    eventually(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers) or None)
    log = server.log.read_text()
    where = r"(in (RECV of chunk \d+ for|(FORWARD|SEND) of chunk \d+ on)|after FORWARD of chunk \d+ on) stage [25]\b"
    assert re.search(rf"rank 2 has given no sign of life for 8 s, {where}.*\(request cmpl-", log), log
    assert re.search(rf"rank 2 died \(exit code -9\), {where}", log), log
    for rank in (0, 1, 3):
        other = rf"rank {rank} (is alive|died \(exit code -?\d+\)), .* of chunk \d+ (on|for) stage [{rank}{7 - rank}]\b"
        assert re.search(other, log), log
    assert not list(server.log.parent.glob("vppc-*"))
