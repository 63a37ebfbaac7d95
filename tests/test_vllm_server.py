"""vLLM's OpenAI server with the flag: right completions to everybody, whoever else comes, is slow, or goes away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from test_vllm_runner import MODELS, needs_vllm, write_checkpoint
from vllm_runs import ENVIRONMENT, ROOT, TOKENS, engines
from worlds import eventually, free_port

pytestmark = needs_vllm
START = 300.0
"""Seconds until a server must be up; alone on a machine it takes a twentieth of that."""


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

    def healthy(self) -> bool:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=5.0)) as connection:
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
            except OSError:
                return False

    def workers(self) -> list[int]:
        """The processes of its ranks."""
        found, families = [], {self.process.pid}
        for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda folder: int(folder.name)):
            try:
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            if int(rest.split()[1]) in families:
                families.add(int(folder.name))
                found += [int(folder.name)] if name.startswith("VLLM::Worker") else []
        return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("model"), MODELS["llama"]))


@pytest.fixture(scope="module")
def server(checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server on two folded ranks."""
    port, log = free_port(), tmp_path_factory.mktemp("server") / "log"
    options = [
        "--model",
        checkpoint,
        "--skip-tokenizer-init",
        "--dtype",
        "float32",
        "--enforce-eager",
        "--max-model-len",
        "2048",
    ]
    options += ["--max-num-batched-tokens", "128", "--port", str(port), "--served-model-name", "m", "-pp", "2"]
    flag = ["--additional-config", json.dumps({"virtual_pipeline_parallel_size": 2})]
    quiet = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    small = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [ENVIRONMENT / "bin/python", "-m", "vllm.entrypoints.openai.api_server", *options, *flag],
            cwd=ROOT,
            env={**os.environ, **quiet, **small},
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
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_folded_server(server: Server, checkpoint: str, tmp_path: Path) -> None:
    random = Random(0)
    prompts = [[random.randrange(300) for _ in range(random.choice((3, 40, 130, 300, 700)))] for _ in range(10)]
    (made,) = engines(tmp_path / "run", checkpoint, prompts, [{}])
    answers_everybody(server, prompts, [each.tokens for each in made])
    ends_with_its_workers(server)


def answers_everybody(server: Server, prompts: list[list[int]], expected: list[list[int]]) -> None:
    """Alone, streamed, and 50 at once, with slow readers and clients that vanish: what stock vLLM makes, always."""
    assert [server.complete(prompt) for prompt in prompts] == expected
    assert [server.stream(prompt) for prompt in prompts] == expected

    def client(number: int) -> list[int]:
        prompt = prompts[number % 10]
        match number // 10:
            case 0:
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


def ends_with_its_workers(server: Server) -> None:
    """One is killed: the server ends, as vLLM's does, and so does who waits for it."""
    with closing(server.ask([1, 2, 3], 1900, stream=True)) as connection, connection.getresponse() as response:
        response.readline()
        os.kill(server.workers()[-1], signal.SIGKILL)
        assert '"code": 500' in response.read().decode()
    eventually(lambda: server.process.poll() is not None or None)
    eventually(lambda: not server.workers() or None)
