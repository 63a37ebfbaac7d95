"""The runtime needs torch only: torch works without numpy, but not all of it does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plans import paper
from vppc.files import write_text
from vppc.ir.document import schedule_text

RUN = "import sys; sys.modules['numpy'] = None; from runtime.__main__ import main; main(sys.argv[1:])"


def test_a_plan_runs_where_numpy_is_not_installed(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the runtime needs torch")
    plan = str(tmp_path / "plan.json")
    write_text(plan, schedule_text(paper("vpp-async", 3, 1)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, plan, "--runner", "null"],
        env={**os.environ, **place},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert "r0" in run.stdout
