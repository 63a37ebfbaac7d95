"""``python -m examples.paper``: the tables and figures, printed."""

from __future__ import annotations

from collections.abc import Iterator

import click

from examples.paper.ablation import ablation
from examples.paper.breakdowns import table_1, table_2a, table_2b, table_2c, waiting_as_communication
from examples.paper.deepseek import costs
from examples.paper.experts import experts
from examples.paper.figures import figures_table
from examples.paper.lengths import figure_1a, figure_1b, figure_4, figure_8
from examples.paper.online import sensitivity
from examples.paper.priors import priors
from examples.paper.serving import figure_3, figure_5, serving_sections


def sections() -> Iterator[tuple[str, str]]:
    """Title and text of every table."""
    for share in (0.0, 1.0):
        cost = costs(share)
        yield f"Table 1, {cost.name}: 512K in chunks of 24K, rank 1", figures_table(table_1(share))
        yield f"Table 2(a), {cost.name}: rank 0", figures_table(table_2a(share))
        if not share:
            yield f"Table 2(b), {cost.name}: computation", figures_table(table_2b())
        yield f"Table 2(c), {cost.name}: bubbles", figures_table(table_2c(share))
    yield (
        f"Table 2, {cost.name}: if VPP's rank 0 has 30 layers, and waiting counts as communication",
        figures_table(waiting_as_communication()),
    )
    for share in (0.0, 1.0):
        cost = costs(share)
        yield f"Figure 1(a), {cost.name}: DCPP over CPP", figures_table(figure_1a(cost))
        yield f"Figure 1(b), {cost.name}: chunks of 32K", figures_table(figure_1b(cost))
        yield f"Figure 4, {cost.name}: throughput", figures_table(figure_4(cost))
        yield f"Figure 8, {cost.name}: VPP's throughput by chunk size", figure_8(cost)
        yield f"Ablation, {cost.name}: three requests of 256K in chunks of 32K", figures_table(ablation(cost))
        yield f"Figure 3, {cost.name}: 100 short requests at once", figures_table(figure_3(cost))
        yield f"Figure 5, {cost.name}: 500 mixed requests, 16 at a time", figures_table(figure_5(cost))
    yield "DCPP by what it measures, after one prompt of the same length or cold", sensitivity()
    yield "Steady-state bubbles of VPP, by how experts are shared out", experts()
    yield "Figure 4 for models without measurements, costs by roofline: VPP over DCPP", priors()
    yield from serving_sections()


@click.command()
def command() -> None:
    """Print the VPP paper's tables and figures beside what the example cost files give."""
    for title, text in sections():
        click.echo(f"{title}\n\n{text}\n")


if __name__ == "__main__":
    command()
