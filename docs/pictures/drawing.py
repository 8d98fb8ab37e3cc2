"""Boxes, text and arrows as SVG. Coordinates are in pixels, from the top left."""

from __future__ import annotations

from html import escape

COLOURS = {"server": "#f6d8ae", "leader": "#bcd9ea", "worker": "#e3eef5", "memory": "#e6e0f0", "quiet": "#f2f2f2"}
INK, FAINT = "#263238", "#78909c"


class Drawing:
    """An SVG picture of a size, to which boxes, text and arrows are added."""

    def __init__(self, width: int, height: int) -> None:
        self._size = width, height
        self._parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, text: str = "", colour: str = "worker") -> None:
        """A box with lines of text in its middle."""
        place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
        self._parts.append(f'<rect {place} rx="5" fill="{COLOURS[colour]}" stroke="{FAINT}"/>')
        lines = text.split("\n") if text else []
        for number, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 5 + 17 * (number - (len(lines) - 1) / 2), line)

    def text(self, x: float, y: float, text: str, *, at: str = "middle", size: int = 14, colour: str = INK) -> None:
        """A line of text; `at` is start, middle or end."""
        self._parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{at}" font-size="{size}" fill="{colour}">{escape(text)}</text>'
        )

    def arrow(self, *points: tuple[float, float], both: bool = False) -> None:
        """A line through some points, with a head at its end, or at both ends."""
        start = ' marker-start="url(#head)"' if both else ""
        path = " ".join(f"{x},{y}" for x, y in points)
        style = f'fill="none" stroke="{INK}" stroke-width="1.4"'
        self._parts.append(f'<polyline points="{path}" {style}{start} marker-end="url(#head)"/>')

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A thin line."""
        self._parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{FAINT}" stroke-dasharray="2 4"/>')

    def svg(self, title: str) -> str:
        """The picture; `title` is what a reader is told who cannot see it."""
        width, height = self._size
        head = (
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="{INK}"/></marker></defs>'
        )
        begin = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="Helvetica, Arial, sans-serif" role="img">'
        )
        background = f'<rect width="{width}" height="{height}" fill="white"/>'
        return "\n".join([begin, f"<title>{escape(title)}</title>", head, background, *self._parts, "</svg>"]) + "\n"
