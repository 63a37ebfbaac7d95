"""Compiled schedules for tests, in few words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from vppc.analysis.report import Report, predict
from vppc.compiler import compile_schedule, paper_cost
from vppc.costs.document import parse_cost, read_cost
from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.errors import InputError
from vppc.ir.placement import DEFAULT_VP
from vppc.ir.schedule import Model, Request, Schedule
from vppc.passes.strategies import STRATEGIES, Options

EXAMPLES = Path(__file__).parents[1] / "examples"
DEEPSEEK = EXAMPLES / "costs" / "deepseek-v3.1-910c-tp8.json"


def paper(
    strategy: str, chunks: int | tuple[int, ...], pp: int = 2, *, t: float = 1.0, transfer: float = 0.0, **options: Any
) -> Schedule:
    """The paper's setting: one-token chunks, chunk k takes (k + 1) t in each of 2 pp layers."""
    vp = options.get("vp") or DEFAULT_VP.get(options.get("placement", "v"), 1)
    cost = paper_cost(max(2, vp) * pp, t, transfer)
    prompts = (chunks,) if isinstance(chunks, int) else chunks
    return compiled(strategy, prompts, pp, cost, chunk_size=1, **options)


def deepseek(strategy: str, prompts: tuple[int, ...], chunk_size: int, pp: int = 2, **options: Any) -> Schedule:
    """Prompts of DeepSeek-V3.1 with the example cost file."""
    return compiled(strategy, prompts, pp, read_cost(str(DEEPSEEK)), chunk_size=chunk_size, **options)


def compiled(strategy: str, prompts: tuple[int, ...], pp: int, cost: CostModel, **options: Any) -> Schedule:
    requests = tuple(Request(f"r{index}", tokens) for index, tokens in enumerate(prompts))
    chosen = Options(strategy=strategy, pp=pp, **options)
    return compile_schedule(requests, Model("test", cost.layer_count), cost, chosen)


def price(schedule: Schedule) -> Report:
    return predict(schedule, parse_cost(schedule.extra["cost"]))


@st.composite
def costs(draw: st.DrawFn, layers: int) -> CostModel:
    """Cost models with one or two kinds of layers and every constant in play."""
    seconds = st.floats(0.0, 10.0, allow_nan=False).map(lambda x: round(x, 3))
    first = draw(st.integers(1, layers))
    kinds = [
        LayerCost(count, draw(seconds), draw(seconds), draw(seconds), draw(seconds), collective_fixed=draw(seconds))
        for count in (first, layers - first)
        if count
    ]
    return CostModel(
        tuple(kinds),
        embed=Linear(draw(seconds)),
        head=Linear(draw(seconds), draw(seconds)),
        transfer=Linear(draw(seconds), draw(seconds)),
        launch=draw(seconds),
    )


@st.composite
def plans(
    draw: st.DrawFn, strategies: tuple[str, ...] = STRATEGIES, max_pp: int = 5, limited: bool = True
) -> Schedule | InputError:
    """Anything that can be asked of the compiler, or only without limits: the schedule, or why there is none."""
    strategy = draw(st.sampled_from(strategies))
    pp = draw(st.integers(1, max_pp))
    placement = draw(st.sampled_from(["v", "zigzag", "loop"])) if strategy.startswith("vpp") else None
    vp = draw(st.integers(2, 4)) if placement in ("zigzag", "loop") else None
    stages = pp * (vp or (2 if placement else 1))
    layers = draw(st.integers(stages, stages + 5))
    prompts = draw(
        st.lists(
            st.builds(
                lambda tokens, cached, arrival: (tokens, min(cached, tokens - 1), arrival),
                st.integers(1, 40),
                st.integers(0, 40),
                st.sampled_from([0.0, 0.0, 3.5, 100.0]),
            ),
            min_size=1,
            max_size=5,
        )
    )
    scale = 40 if strategy.startswith("dcpp") else 1  # dynamic policies fit a curve to many chunk lengths
    requests = tuple(
        Request(f"r{index}", tokens * scale, cached * scale, arrival)
        for index, (tokens, cached, arrival) in enumerate(prompts)
    )
    sees_exits = placement is not None  # on a straight placement such limits are refused
    limits = st.one_of(st.none(), st.integers(1, 8)) if limited else st.none()
    options = Options(
        strategy=strategy,
        pp=pp,
        placement=placement,
        vp=vp,
        chunk_size=draw(st.integers(1, 12)) if scale == 1 else draw(st.integers(110, 400)),
        token_budget=draw(limits),
        max_in_flight=draw(limits) if sees_exits else None,
        max_resident_tokens=draw(st.one_of(st.none(), st.integers(35, 100))) if limited and sees_exits else None,
        max_buffers=draw(limits),
        page_size=draw(st.sampled_from([1, 4, 128])),
        min_chunk=draw(st.integers(1, 8)) * scale,
    )
    cost = draw(costs(layers))
    try:
        return compile_schedule(requests, Model("any", layers), cost, options)
    except InputError as error:
        return error


def load(path: Path) -> Any:
    return json.loads(path.read_text())
