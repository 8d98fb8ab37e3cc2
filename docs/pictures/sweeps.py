"""Draws the sweeps of docs/results.md from its tables: `python docs/pictures/sweeps.py` writes them beside itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

HERE = Path(__file__).parent
RATES = {"Mbit/s": 1.0, "Gbit/s": 1000.0}


def table(heading: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the first table below a heading, without the first two lines."""
    below = (HERE.parent / "results.md").read_text().partition(f"\n## {heading}\n")[2]
    rows = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert rows is not None, f"no table below {heading!r}"
    for row in rows[0].splitlines()[2:]:
        yield [cell.strip() for cell in row.strip("|").split("|")]


def draw_gossip(to: Path) -> None:
    """Accuracy over traffic, for thresholds and for periods."""
    kinds: dict[str, list[tuple[float, float, str]]] = {"change": [], "every": []}
    for name, accuracy, traffic, _ in table("Adaptive gossip on CIFAR-10 images"):
        if trigger := re.search(r"`((change|every):[\d.]+)`", name):
            kinds[trigger[2]].append((float(traffic.split()[0]), float(accuracy.split()[0]), trigger[1]))
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for kind, label in (("change", "threshold on the change"), ("every", "fixed period")):
        points = sorted(kinds[kind])
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], "o-", label=label)
        for x, y, name in points:
            axes.annotate(name, (x, y), (5, -12 if kind == "every" else 5), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", xlabel="sent and received (MB)", ylabel="accuracy (%)")
    axes.margins(0.1)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(to, dpi=100)


def draw_links(to: Path) -> None:
    """How many times sooner `elastic` reaches the accuracy, over the rate of the links."""
    rows = list(table("Time to accuracy over limited links"))
    rates = [float(number) * RATES[unit] for number, unit in (row[0].split() for row in rows)]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for column, label in ((4, "MXNet's dist_sync / elastic"), (5, "sync / elastic")):
        axes.plot(rates, [float(row[column]) for row in rows], "o-", label=label)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="rate of each link (Mbit/s)", ylabel="ratio of the times to 93 %", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(to, dpi=100)


if __name__ == "__main__":
    draw_gossip(HERE / "gossip.png")
    draw_links(HERE / "links.png")
