"""The pictures themselves: numbers in, a figure out.

Shapes: N occurrences, L layers, D width of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ElmoError
from elmo.explore.projection import cosines, plane
from elmo.plot.canvas import new_figure

Points = Sequence[tuple[float, float]]
"""Steps and values."""
TRAINING = "training"
"""The curve of what a run learned from, which is drawn behind those of held-out text."""


@dataclass(frozen=True)
class Mix:
    """What a task has learned of the layers."""

    name: str
    """Whose it is."""
    place: str
    """Where ELMo goes in."""
    shares: Sequence[float]
    """One a layer, which sum to 1."""


def layers_figure(mixes: Sequence[Mix]) -> Any:
    """The layers' shares in each mix, as in the paper's Figure 2."""
    counts = sorted({len(mix.shares) for mix in mixes})
    if len(counts) != 1:
        found = f"mixes of {' and '.join(map(str, counts))} layers are given" if counts else "no mix is given"
        raise ElmoError(f"{found}: draw those of one number of layers")
    figure = new_figure(1.6 + 0.8 * len(mixes), 3.2)
    axis = figure.subplots()
    shares = np.array([mix.shares for mix in mixes]).T
    image = axis.imshow(shares, aspect="auto", vmin=0, vmax=1, cmap="viridis", origin="lower")
    for (layer, column), share in np.ndenumerate(shares):
        axis.text(column, layer, f"{share:.2f}", ha="center", va="center", color="black" if share > 0.6 else "white")
    axis.set_xticks(range(len(mixes)), [f"{mix.name}\n{mix.place}" for mix in mixes], fontsize=8)
    axis.set_yticks(range(counts[0]), [f"layer {layer}" for layer in range(counts[0])])
    figure.colorbar(image, label="share")
    return figure


def loss_figure(curves: Mapping[str, Points], lines: Mapping[str, float]) -> Any:
    """Losses by step; where it is a language model's, with the perplexities that they stand for on the right.

    Args:
        curves: by name.
        lines: losses to compare with, by name.
    """
    figure = new_figure(7.2, 4)
    axis = figure.subplots()
    for number, (name, points) in enumerate(curves.items()):
        steps, values = zip(*points, strict=True)
        style: dict[str, Any] = (
            {"color": "0.6"} if name == TRAINING else {"color": f"C{number}", "marker": "o", "ms": 3}
        )
        axis.plot(steps, values, label=name, **style)
    for number, (name, value) in enumerate(lines.items(), start=len(curves)):
        axis.axhline(value, label=name, linestyle="--", color=f"C{number}")
    axis.set(xlabel="step", ylabel="loss")
    axis.grid(alpha=0.3)
    axis.legend()
    if lines or curves.keys() - {TRAINING}:
        right = axis.secondary_yaxis("right")
        right.set_ylabel("perplexity")
        right.yaxis.set_major_formatter(lambda value, _: _rounded(math.exp(min(value, 700))))
    return figure


def _rounded(perplexity: float) -> str:
    return f"{perplexity:,.0f}" if perplexity >= 100 else f"{perplexity:.3g}"


@dataclass(frozen=True)
class Occurrences:
    """A word where it stands in a text, and in sentences that show what it can mean."""

    vectors: NDArray[np.float32]
    """`(N, L, D)`, of the text."""
    examples: Mapping[str, NDArray[np.float32]]
    """`(L, D)` of the word in each sentence."""


def map_figure(word: str, found: Occurrences) -> Any:
    """A map of a word's occurrences for each layer; near points are used alike.

    Where there are examples, they are stars, and an occurrence has the colour of the one that its top layer's vector
    is nearest to.
    """
    examples = np.array(list(found.examples.values())).reshape(-1, *found.vectors.shape[1:])
    every = np.concatenate([found.vectors, examples])
    nearest = cosines(found.vectors[:, -1], examples[:, -1]).argmax(axis=1) if len(examples) else None
    colours = "C0" if nearest is None else [f"C{number % 10}" for number in nearest]
    maps = [plane(every[:, layer]) for layer in range(every.shape[1])]
    edge = 1.1 * max(float(np.abs(points).max()) for points in maps) or 1.0
    figure = new_figure(4 * len(maps), 4.4 + 0.25 * len(examples))
    for layer, axis in enumerate(figure.subplots(1, len(maps), squeeze=False)[0]):
        own, stars = np.split(maps[layer], [len(found.vectors)])
        axis.scatter(*own.T, s=16, alpha=0.6, c=colours, linewidths=0)
        for number, (sentence, star) in enumerate(zip(found.examples, stars, strict=True)):
            axis.scatter(*star, marker="*", s=180, color=f"C{number % 10}", edgecolors="black", label=sentence)
        # One scale for all: where the vectors hardly differ, the points must not look as if they did.
        axis.set(title=f"layer {layer}", xticks=[], yticks=[], xlim=(-edge, edge), ylim=(-edge, edge), aspect="equal")
    figure.suptitle(f"{word}, {len(own):,} times")
    if found.examples:
        figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center")
    return figure


def cosines_figure(first: Sequence[str], second: Sequence[str], values: NDArray[np.float64]) -> Any:
    """The cosine of each token of one sentence and each of another, `(N, M)`."""
    figure = new_figure(2.2 + 0.45 * len(second), 1.6 + 0.35 * len(first))
    axis = figure.subplots()
    image = axis.imshow(values, vmin=min(0.0, float(values.min())), vmax=1, cmap="viridis", aspect="auto")
    axis.set_xticks(range(len(second)), second, rotation=45, ha="right")
    axis.set_yticks(range(len(first)), first)
    figure.colorbar(image, label="cosine")
    return figure
