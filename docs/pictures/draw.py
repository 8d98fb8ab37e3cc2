"""The drawn pictures of the documentation: `python docs/pictures/draw.py` writes them beside itself."""

from __future__ import annotations

from pathlib import Path

from drawing import FAINT, INK, Drawing


def tiers() -> str:
    """Two groups of three workers, and two servers."""
    d = Drawing(760, 380)
    for y, lines in (
        (36, ("across groups", "ZeroMQ", "weights every tau steps,", "or gradients every step")),
        (260, ("in a group", "MPI", "gradients", "every step")),
    ):
        for number, line in enumerate(lines):
            d.text(10, y + 19 * number, line, at="start", colour=INK if number == 0 else FAINT)
    for number, x in enumerate((220, 480)):
        d.box(x, 20, 200, 58, f"server {number}\nchunks {number}, {number + 2}, ...", "server")
    for group, x in enumerate((140, 460)):
        d.box(x, 210, 280, 150, "", "quiet")
        d.text(x + 140, 350, f"group {group}")
        d.box(x + 95, 225, 90, 44, "leader", "leader")
        d.box(x + 15, 285, 90, 44, "worker")
        d.box(x + 175, 285, 90, 44, "worker")
        d.arrow((x + 100, 269), (x + 70, 285), both=True)
        d.arrow((x + 180, 269), (x + 210, 285), both=True)
        d.arrow((x + 105, 307), (x + 175, 307), both=True)
        d.arrow((x + 125, 225), (320 if group == 0 else 340, 78), both=True)
        d.arrow((x + 155, 225), (560 if group == 0 else 580, 78), both=True)
    return d.svg("Workers of a group sum their gradients in every step. Leaders exchange values with the servers.")


def step() -> str:
    """A step in time: backward, the buckets of the group, the exchange, the update."""
    d = Drawing(760, 330)
    rows = ("backward", "in the group", "at the servers", "update")
    for number, name in enumerate(rows):
        d.text(20, 68 + 60 * number, name, at="start")
        d.line(150, 90 + 60 * number, 740, 90 + 60 * number)
    for number in range(4):
        d.box(150 + 90 * number, 45, 86, 34, f"layers {4 - number}", "worker")
        d.box(246 + 90 * number, 105, 70, 34, f"bucket {number + 1}", "leader")
        d.box(322 + 90 * number, 165, 62, 34, f"sum {number + 1}", "server")
        d.arrow((236 + 90 * number, 79), (250 + 90 * number, 105))
        d.arrow((312 + 90 * number, 139), (326 + 90 * number, 165))
        d.arrow((380 + 90 * number, 199), (392 + 90 * number, 225))
        d.box(384 + 90 * number, 225, 62, 34, f"layers {4 - number}", "memory")
    d.arrow((510, 290), (716, 290), both=True)
    d.text(613, 310, "exposed: backward no longer hides it", size=13)
    d.arrow((150, 24), (240, 24))
    d.text(250, 29, "time", at="start", size=13)
    return d.svg(
        "While backward computes the first layers, the gradients of the last layers are already summed and applied."
    )


def server() -> str:
    """The threads of a server, and the memory that they own."""
    d = Drawing(760, 370)
    d.box(165, 15, 580, 300, "", "quiet")
    d.text(247, 300, "a server process")
    d.box(185, 75, 125, 180, "loop\n\nreads messages,\ncounts them,\nsends answers,\nheartbeats", "server")
    for number in range(2):
        d.box(10, 90 + 100 * number, 110, 54, f"leader of\ngroup {number}", "leader")
        d.arrow((120, 117 + 100 * number), (185, 150 + 30 * number), both=True)
    for number in range(3):
        y = 32 + 88 * number
        d.box(390, y, 132, 64, f"worker thread {number}\nchunks {number}, {number + 3}, ...", "leader")
        d.arrow((310, 165), (390, y + 32), both=True)
        d.box(590, y, 140, 64, "centre and states\nof its chunks", "memory")
        d.arrow((522, y + 32), (590, y + 32), both=True)
    d.text(345, 95, "tasks", size=13)
    d.box(
        10,
        325,
        735,
        36,
        "gradients and weights of groups on this host, which share their memory with the server",
        "memory",
    )
    d.arrow((456, 272), (456, 325), both=True)
    return d.svg("The loop of a server hands tasks to worker threads. No two threads share a chunk.")


PICTURES = {"tiers": tiers, "step": step, "server": server}


def main() -> None:
    """Write all pictures."""
    for name, draw in PICTURES.items():
        Path(__file__).with_name(f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
