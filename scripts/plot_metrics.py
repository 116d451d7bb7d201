"""Draw the curves of a run as SVG: `python scripts/plot_metrics.py RUN/metrics.jsonl docs/demo-curve.svg [UNIGRAM]`.

Training loss (of its own softmax), held-out loss of both directions and, where its perplexity is given, a unigram
model's as a line to compare with. No plotting library: two axes and some lines.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT, EDGE = 720, 400, 50
CURVES = {
    "loss": ("training", "#888888"),
    "valid_forward": ("held out, forward", "#1f77b4"),
    "valid_backward": ("held out, backward", "#d62728"),
}

Points = list[tuple[float, float]]


def curves(path: Path) -> dict[str, Points]:
    """Steps and values of each curve."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {key: [(line["step"], line[key]) for line in lines if key in line] for key in CURVES}


def draw(found: dict[str, Points], unigram: float | None) -> str:
    """The picture."""
    values = [value for points in found.values() for _, value in points] + ([unigram] if unigram else [])
    last = max(step for points in found.values() for step, _ in points)
    low, high = math.floor(min(values)), math.ceil(max(values))

    def place(step: float, value: float) -> str:
        x = EDGE + (WIDTH - 2 * EDGE) * step / last
        return f"{x:.1f},{EDGE + (HEIGHT - 2 * EDGE) * (high - value) / (high - low):.1f}"

    def label(at: str, text: str, more: str = "") -> str:
        x, y = at.split(",")
        return f'<text x="{x}" y="{y}" {more}>{text}</text>'

    parts = [f'<polyline points="{place(0, high)} {place(0, low)} {place(last, low)}" fill="none" stroke="black"/>']
    for value in range(low, high + 1):
        parts.append(label(place(0, value), f"{value} ({math.exp(value):,.0f})", 'text-anchor="end" dx="-4" dy="4"'))
    parts.append(label(place(last, low), f"step {last:,}", 'text-anchor="end" dy="20"'))
    legend = []
    for key, (name, colour) in CURVES.items():
        shown = " ".join(place(*point) for point in found[key])
        parts.append(f'<polyline points="{shown}" fill="none" stroke="{colour}" stroke-width="2"/>')
        legend.append((name, colour))
    if unigram:
        line = f"{place(0, unigram)} {place(last, unigram)}"
        parts.append(f'<polyline points="{line}" fill="none" stroke="#2ca02c" stroke-dasharray="6 4"/>')
        legend.append(("unigram model, held out", "#2ca02c"))
    for number, (name, colour) in enumerate(legend):
        place_of = f"{WIDTH - EDGE},{EDGE + 16 * number}"
        parts.append(label(place_of, name, f'text-anchor="end" fill="{colour}"'))
    parts.append(label(f"{EDGE},{EDGE - 20}", "loss (perplexity)", 'text-anchor="middle"'))
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n{inside}\n</svg>\n'
    )


def main() -> None:
    """Read the metrics, write the picture."""
    unigram = math.log(float(sys.argv[3])) if len(sys.argv) > 3 else None
    Path(sys.argv[2]).write_text(draw(curves(Path(sys.argv[1])), unigram), encoding="utf-8")


if __name__ == "__main__":
    main()
