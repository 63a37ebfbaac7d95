"""A folded server's costs follow what its ranks take: on a clock that the tests make, at costs that they know."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_batch_order import Engine, engine, order

from runtime.vllm_plugin.correction import Correction, costs_with, send_with
from runtime.vllm_plugin.page import Page
from tests.serving_streams import LAYERS
from vppc.costs.model import CostModel, LayerCost, Linear, Prices
from vppc.ir.instruction import FORWARD
from vppc.ir.schedule import Chunk, Part, Request
from vppc.serving.batch_order import Entry

WRONG = CostModel((LayerCost(LAYERS, per_token=1e-5),), transfer=Linear(1e-4))
RIGHT = CostModel((LayerCost(LAYERS, per_token=2e-5, per_pair=2e-7),), transfer=Linear(1e-4), launch=1e-3)


class Server:
    """Two ranks that take what ``RIGHT`` says, under a compiler that is told ``cost``."""

    def __init__(self, file: Path, cost: CostModel) -> None:
        self.engine: Engine = engine(2, 4, cost)
        self.page = Page(file, 2, create=True)
        self.notices: list[str] = []
        self.correction = Correction(self.engine.compiler, cost, self.page, 1, self.notices.append)
        self.prompts: dict[int, Request] = {}
        self._sent = 0
        self.chunks: list[Chunk] = []

    def answer(self, tokens: int, sizes: Sequence[int], decodes: int = 0) -> None:
        """A prompt in chunks of these sizes, and so many tokens of its answer, each when the one before is there."""
        index = len(self.prompts)
        request = self.prompts[index] = Request(f"r{index}", tokens)
        ends = [*accumulate(sizes), *range(tokens + 1, tokens + 1 + decodes)]
        for number, (start, end) in enumerate(pairwise((0, *ends))):
            part = Part(index, start, end - start, decode=end > tokens)
            new, gone = ((), ()) if number else ((request,), (index - 1,) if index else ())
            self.engine.enter(Entry(Chunk((part,)), new, {index: request}, gone, index))
            while end >= tokens and self.engine.queue:
                self.engine.wait()
            self._run()

    def look(self) -> CostModel | None:
        """When nobody fits costs any more."""
        for thread in threading.enumerate():
            if thread.name == "refit":
                thread.join()
        return self.correction.look()

    def _run(self) -> None:
        """The ranks run what they were sent; a FORWARD takes what it does."""
        for segment in self.engine.segments[self._sent :]:
            self.correction.sent(segment)
            self.chunks += segment.chunks
            for program in segment.programs:
                each = iter(program.code)
                rows = zip(each, each, each, each, each, each, strict=True)
                for instruction, (op, chunk, stage, *_) in enumerate(rows, program.start):
                    seconds = self._seconds(chunk)[stage] if op == FORWARD else 1e-5
                    self.page.put_ran(program.rank, instruction, 7.0, 7.0 + seconds)
        self._sent = len(self.engine.segments)

    def _seconds(self, chunk: int) -> Sequence[float]:
        lengths = {index: request.prompt_tokens for index, request in self.prompts.items()}
        return Prices(self.engine.compiler.opening.stages, RIGHT).of((self.chunks[chunk],), lengths).seconds


def warmed(server: Server) -> Server:
    """Some prompts and answers, so that there is something to fit costs to."""
    for tokens in (300, 2000, 700, 1200):
        server.answer(tokens, [min(200, tokens - start) for start in range(0, tokens, 200)], decodes=6)
    return server


@pytest.mark.parametrize("sizes", [(400, 400, 16, 200, 800), (16, 16, 16, 200, 64, 200, 200, 800), (64, 800, 800, 64)])
def test_ranks_are_ordered_by_what_they_take(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Costs that know nothing of attention give another order. Corrected ones, that of costs which are right."""
    wrong, right = warmed(Server(tmp_path / "wrong", WRONG)), warmed(Server(tmp_path / "right", RIGHT))
    corrected = warmed(Server(tmp_path / "corrected", WRONG))
    assert corrected.look() is None  # it only begins to fit
    found = corrected.look()
    assert found is not None
    (layer,) = found.layers
    assert (layer.per_token, layer.per_pair) == pytest.approx((2e-5, 2e-7), rel=1e-3)
    assert found.launch + LAYERS / 4 * layer.fixed == pytest.approx(1e-3, rel=1e-3)
    assert found.transfer == WRONG.transfer
    assert corrected.notices[0].endswith("% longer than planned")
    assert corrected.notices[1:] == ["costs refitted to what the ranks take"]
    orders = []
    for server in (wrong, right, corrected):
        first = len(server.chunks)
        server.answer(sum(sizes), sizes)
        ways = order(server.engine.close(), 0)
        orders.append([way for way in ways if int(way.split()[1]) >= first])
    assert orders[0] != orders[1] == orders[2]


def test_drift_is_shown_of_each_rank(tmp_path: Path) -> None:
    """From the costs that ranks are ordered by, wrong ones and then those that fit."""
    server = warmed(Server(tmp_path / "page", WRONG))
    assert [row.drift for row in server.page.ranks()] == [None, None]
    server.look()
    assert all(row.drift is not None and row.drift > 1.0 for row in server.page.ranks())
    server.look()
    warmed(server).look()
    assert [row.drift for row in server.page.ranks()] == pytest.approx([0.0, 0.0], abs=1e-3)


def test_right_costs_stay(tmp_path: Path) -> None:
    server = warmed(Server(tmp_path / "page", RIGHT))
    assert (server.look(), server.look(), server.notices) == (None, None, [])


def test_costs_go_with_what_a_batch_has_made() -> None:
    made = SimpleNamespace()
    assert costs_with(made) is None
    assert costs_with(send_with(made, RIGHT)) == RIGHT
