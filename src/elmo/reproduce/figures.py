"""The paper's figures, drawn by matplotlib (`elmo[plot]`), with the numbers beside them."""

from __future__ import annotations

from pathlib import Path

from elmo.plot.canvas import new_figure, save_figure
from elmo.plot.figures import Mix, layers_figure
from elmo.reproduce.lab import Lab, NotDoneError, Settings
from elmo.reproduce.tables import layer_weights, markdown, on, spread, with_elmo, without
from elmo.tasks.all import task_named

SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
_PASSES = {0.01: 50, 0.03: 17, 0.1: 5, 0.3: 2}  # that make an epoch: half as many steps as all examples have, or more
TASKS = ("inference", "ner")
"""Of Figure 1: small enough for a CPU; the paper has SNLI and SRL."""


def efficiency(lab: Lab) -> dict[str, dict[str, list[list[float]]]]:
    """Figure 1 as numbers: by task and model, the test score with each share of the training set, if that was done."""
    found: dict[str, dict[str, list[list[float]]]] = {}
    for name in [name for name in TASKS if name in lab.study.tasks]:
        variants = {"baseline": without(name), "with ELMo": with_elmo(name)}
        found[name] = {
            label: [on("test", lab.results(name, with_share(settings, share))) for share in SHARES]
            for label, settings in variants.items()
        }
    return found


def with_share(settings: Settings, share: float) -> Settings:
    """The same with a share of the training set; all of it is what the other tables have.

    A share's run goes to its end: with few examples a score may stand still for longer than patience lasts.
    """
    return {**settings, "train": {"share": share, "passes": _PASSES[share], "patience": 0}} if share < 1 else settings


def figure1(lab: Lab, folder: Path) -> str:
    """How much training data it takes, without and with ELMo."""
    found = efficiency(lab)
    if not found:
        raise NotDoneError(f"it is of {' and '.join(TASKS)}, neither of which was asked for")
    figure = new_figure(5 * len(found), 3.6)
    for axis, (name, lines) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        for label, scores in lines.items():
            points = [
                (100 * share, 100 * score) for share, found in zip(SHARES, scores, strict=True) for score in found
            ]
            axis.plot([share for share, _ in points], [score for _, score in points], marker="o", label=label)
        axis.set(xscale="log", xlabel="% of the training set", ylabel=task_named(name).score, title=name)
        axis.set_xticks([100 * share for share in SHARES], [f"{100 * share:g}" for share in SHARES])
        axis.legend()
    save_figure(figure, folder / "figure1.svg")
    header = ["task", "", *(f"{100 * share:g} %" for share in SHARES)]
    body = [[name, label, *map(spread, scores)] for name, lines in found.items() for label, scores in lines.items()]
    text = markdown(header, body) + "\nTest sets, one seed.\n\n![scores by share of the training set](figure1.svg)\n"
    return "# Figure 1: how much training data it takes\n\n" + text


def figure2(lab: Lab, folder: Path) -> str:
    """What the mixes have learned."""
    mixes = [
        Mix(name, place, shares)
        for name, result in layer_weights(lab).items()
        for place, shares in result.layer_weights.items()
    ]
    if not mixes:
        raise NotDoneError("no task was trained with ELMo")
    save_figure(layers_figure(mixes), folder / "figure2.svg")
    header = ["task", "at its", *(f"layer {layer}" for layer in range(len(mixes[0].shares)))]
    body = [[mix.name, mix.place, *(f"{share:.3f}" for share in mix.shares)] for mix in mixes]
    text = markdown(header, body) + "\nShares after the softmax, first seed.\n\n![shares of the layers](figure2.svg)\n"
    return "# Figure 2: what the layers weigh\n\n" + text
