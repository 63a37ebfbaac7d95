"""Serving on real ranks: first tokens of requests that come, are cancelled and are wrong, in any mixture."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from serve_worlds import Server, Serving, cost, held_up
from test_reference_runner import alone
from worlds import succeeded

from runtime.reference.config import small_model
from vppc.ir.schedule import Model, Request, Schedule

LAYERS = 8


def one_process(requests: Mapping[str, int], layers: int = LAYERS) -> dict[str, tuple[int, float]]:
    """The first token of each prompt run alone and whole, and how far its logit is ahead of the next."""
    prompts = tuple(Request(name, tokens) for name, tokens in requests.items())
    schedule = Schedule("", Model("", layers), 1, 1, requests=prompts)
    found = {}
    for index, (logits,) in alone(schedule, small_model(layers)).items():
        first, second = logits.topk(2).values.tolist()
        found[prompts[index].id] = int(logits.argmax()), first - second
    return found


def test_first_tokens_are_those_of_one_process(tmp_path: Path) -> None:
    """200 requests of 1 to 300 tokens, chunks of 64, two ranks; an eighth of the requests is cancelled at some time."""
    random = Random(6)
    lines: list[dict[str, Any]] = []
    prompts: dict[str, int] = {}
    cancelled = set()
    now = 0.0
    for index in range(200):
        name = f"q{index}"
        prompts[name] = random.choice((random.randint(1, 20), random.randint(20, 100), random.randint(100, 300)))
        lines.append({"id": name, "prompt_tokens": prompts[name], "arrival": now})
        if random.random() < 0.125:
            cancelled.add(name)
            lines.append({"cancel": name, "arrival": now + random.choice((0.0, 0.01, 0.1))})
        now += random.expovariate(60)
    lines.append({"id": "cached", "prompt_tokens": 9, "cached_tokens": 3})
    with Serving(tmp_path, 2) as serving:
        server = Server(serving, 2, cost(LAYERS, 1e-5), chunk_size=64, fill=True)
        served = server.serve(lines)
        succeeded(serving.ended())
    errors = {each["id"]: each["error"] for each in server.out if "error" in each}  # too late to cancel, and
    assert errors["cached"].startswith("3 tokens are cached, and these ranks keep no prefixes\n")
    tokens = {each["id"]: each["token"] for each in server.out if "token" in each}
    given_up = [each["id"] for each in server.out if "cancelled" in each]
    assert served.accepted == 200 and len(tokens) + len(given_up) == 200
    assert set(given_up) <= cancelled and not tokens.keys() & set(given_up)
    assert len(given_up) > 10
    expected = one_process({name: prompts[name] for name in tokens})
    assert all(lead > 1e-3 for _, lead in expected.values())  # else rounding could decide
    assert tokens == {name: token for name, (token, _) in expected.items()}


def test_cancelled_wherever_a_request_is(tmp_path: Path) -> None:
    """One that the plan is through with and the ranks are not, one partly in chunks, one that waits; one that is gone,
    and one that never was. The ranks are held up meanwhile."""
    gate = tmp_path / "gate"
    out: list[Mapping[str, Any]] = []

    def write(document: Mapping[str, Any]) -> None:
        out.append(document)
        if len(out) == 5:
            gate.touch()

    lines: list[dict[str, Any]] = [{"id": name, "prompt_tokens": n} for name, n in (("a", 10), ("b", 900), ("c", 5))]
    lines += [{"cancel": name, "arrival": 0.3 + 0.01 * index} for index, name in enumerate(["a", "b", "c", "a", "x"])]
    lines.append({"id": "d", "prompt_tokens": 70, "arrival": 0.4})
    with Serving(tmp_path, 2, target=held_up, given=[gate]) as serving:
        served = Server(serving, 2, cost(4, 1e-3), write=write, chunk_size=64).serve(lines)
        ended = succeeded(serving.ended())
    gone = "no request {!r} is open: it is through, or has not come"
    assert out[:3] == [{"id": name, "cancelled": True} for name in "abc"]
    assert out[3:5] == [{"line": line, "id": name, "error": gone.format(name)} for line, name in ((7, "a"), (8, "x"))]
    assert (out[5]["id"], out[5]["token"]) == ("d", one_process({"d": 70}, 4)["d"][0])
    assert (served.cancelled, served.wrong, len(out)) == (3, 2, 6)
    for process, err in enumerate(ended.err):
        *computed, holds = err.splitlines()
        assert set(computed[1 - process :]) == {"computes 2"}  # rank 0 had begun with the first
        assert holds == "holds"


def test_what_cannot_be_served_disturbs_nothing(tmp_path: Path) -> None:
    """Nor does it that the last request comes after longer than what anybody is waited for."""
    lines = [
        {"id": "a", "prompt_tokens": 30},
        "not JSON",
        "",
        {"id": "b", "prompt_tokens": 0},
        {"id": "a", "prompt_tokens": 5},
        {"prompt_tokens": 7},
        {"cancel": "x"},
        {"id": "c", "prompt_tokens": 9, "cached_tokens": 3},  # of which the null runner needs nothing
        {"id": "d", "prompt_tokens": 500},
        "[1]",
        "\x00",
        {"id": "late", "prompt_tokens": 3, "arrival": 8.5},
    ]
    with Serving(tmp_path, 2, "--runner", "null") as serving:
        server = Server(serving, 2, cost(4), chunk_size=16, max_resident_tokens=100)
        served = server.serve(lines)
        succeeded(serving.ended())
    tokens = {each["id"]: each["token"] for each in server.out if "token" in each}
    assert tokens == {"a": 0, "line-6": 0, "c": 0, "late": 0}
    assert sorted((each["line"], each.get("id")) for each in server.out if "error" in each) == [
        (2, None),
        (4, None),
        (5, "a"),
        (7, "x"),
        (9, "d"),
        (10, None),
        (11, None),
    ]
    assert (served.accepted, served.wrong, served.refused) == (4, 7, 0)


def test_a_full_queue_refuses(tmp_path: Path) -> None:
    lines = [{"id": f"q{index}", "prompt_tokens": 1000} for index in range(40)]
    with Serving(tmp_path, 2, "--runner", "null") as serving:
        server = Server(serving, 2, cost(4, 1e-5), chunk_size=1000, max_in_flight=2, max_queued=5)
        served = server.serve(lines)
        succeeded(serving.ended())
    refused = [each for each in server.out if "refused" in each]
    assert refused and refused[0]["refused"] == "5 requests wait already"
    assert len(refused) + len([each for each in server.out if "token" in each]) == 40
    assert served.refused == len(refused) and served.accepted == 40 - served.refused


@pytest.mark.parametrize("strategy", ["cpp", "vpp-async", "vpp"])
def test_every_kind_of_strategy(strategy: str, tmp_path: Path) -> None:
    lines = [{"id": f"q{index}", "prompt_tokens": 10 + 30 * index} for index in range(8)] + [{"cancel": "q7"}]
    with Serving(tmp_path, 3, "--runner", "timed") as serving:
        server = Server(serving, 3, cost(6), strategy=strategy, chunk_size=32)
        server.serve(lines)
        succeeded(serving.ended())
    assert {each["id"] for each in server.out if "token" in each} == {f"q{index}" for index in range(7)}


def test_memory_is_flat(tmp_path: Path) -> None:
    """2,000 short requests: after the last 1,000 of them ranks and coordinator hold what they held before."""
    random = Random(2)
    seen: dict[int, list[int]] = {}
    count = 0

    def write(document: Mapping[str, Any]) -> None:
        nonlocal count
        count += 1
        if count in (1000, 2000):
            seen[count] = [tracemalloc.get_traced_memory()[0], *serving.memory()]

    now = 0.0
    lines = []
    for index in range(2000):
        lines.append({"id": f"q{index}", "prompt_tokens": random.randint(1, 60), "arrival": now})
        now += random.expovariate(400)
    with Serving(tmp_path, 2, "--runner", "null") as serving:
        server = Server(serving, 2, cost(4), chunk_size=64, write=write)
        tracemalloc.start()
        try:
            served = server.serve(lines)
        finally:
            tracemalloc.stop()
        succeeded(serving.ended())
    assert len(served.ttfts) == 2000
    for before, after in zip(seen[1000], seen[2000], strict=True):
        assert after - before < 512 * 1024
