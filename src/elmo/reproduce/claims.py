"""Does it hold here? Each claim of the paper, with the numbers that speak for it or against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from statistics import mean, median

from elmo.reproduce.figures import SHARES, efficiency
from elmo.reproduce.lab import Lab, NotDoneError, Settings
from elmo.reproduce.tables import CHOSEN, ENDS, dev_scores, markdown, rows, senses, tags, with_elmo, without
from elmo.tasks.senses import FREQUENT


@dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    claim: str
    held: bool
    numbers: str


def claims(lab: Lab) -> str:
    """All of them, as Markdown."""
    body = [[one.claim, "held" if one.held else "did not hold", one.numbers] for one in _verdicts(lab)]
    return "# The paper's claims\n\n" + markdown(["claim", "here", "numbers"], body)


def _verdicts(lab: Lab) -> Iterator[Verdict]:
    """Of the claims whose runs were done."""
    for claim in _CLAIMS:
        with suppress(NotDoneError):
            yield claim(lab)


def _every_task(lab: Lab) -> Verdict:
    gains = {row.task: 100 * (mean(row.elmo) - mean(row.baseline)) for row in rows(lab)}
    return Verdict(
        "ELMo improves every task (Table 1)", all(gain > 0 for gain in gains.values()), _listed(gains, "+.2f")
    )


def _error_cut(lab: Lab) -> Verdict:
    cut = 100 * median(row.error_cut for row in rows(lab))
    return Verdict("relative error reductions of 6 to 20 % (Table 1)", cut >= 6, f"median {cut:.1f} %")


def _all_layers(lab: Lab) -> Verdict:
    gains = _gains(lab, with_elmo, lambda name: with_elmo(name, layers="top"))
    return Verdict("all layers are better than the last alone (Table 2)", _always(gains), _listed(gains, "+.2f"))


def _small_lambda(lab: Lab) -> Verdict:
    gains = _gains(lab, with_elmo, lambda name: with_elmo(name, penalty=1.0))
    return Verdict("a small lambda is better than a large one (Table 2)", _always(gains), _listed(gains, "+.2f"))


def _last_helps(lab: Lab) -> Verdict:
    gains = _gains(lab, lambda name: with_elmo(name, layers="top"), without)
    return Verdict("the last layer alone is better than none (Table 2)", _always(gains), _listed(gains, "+.2f"))


def _both_ends(lab: Lab) -> Verdict:
    gains = _gains(lab, ENDS["input and output"], ENDS["input only"])
    wanted = all((gain > 0) == (name != "srl") for name, gain in gains.items())
    claim = "ELMo at both ends is better than at the input for SNLI and SQuAD, worse for SRL (Table 3)"
    return Verdict(claim, wanted, _listed(gains, "+.2f"))


def _senses_high(lab: Lab) -> Verdict:
    total = {name: 100 * score.f1 for name, score in senses(lab).total().items()}
    first, top = total["layer 1"], total[f"layer {lab.model.config.n_layers - 1}"]
    numbers = f"layer 1 {first:.2f}, top layer {top:.2f}, most frequent sense {total[FREQUENT]:.2f}"
    return Verdict("senses are told apart best by the top layer (Table 5)", top > first > total[FREQUENT], numbers)


def _tags_low(lab: Lab) -> Verdict:
    by_layer = [100 * score.test for score in tags(lab).layers]
    numbers = ", ".join(f"layer {layer} {score:.2f}" for layer, score in enumerate(by_layer))
    return Verdict("parts of speech are told best by layer 1 (Table 6)", max(by_layer) == by_layer[1], numbers)


def _less_data(lab: Lab) -> Verdict:
    tenth, hundredth = SHARES.index(0.1), SHARES.index(0.01)
    pairs = {
        name: (lines["with ELMo"][hundredth][0], lines["baseline"][tenth][0])
        for name, lines in efficiency(lab).items()
        if lines["with ELMo"][hundredth] and lines["baseline"][tenth]
    }
    if not pairs:
        raise NotDoneError("no task was trained with a hundredth and a tenth of its examples")
    numbers = "; ".join(f"{name} {100 * one:.2f} against {100 * ten:.2f}" for name, (one, ten) in pairs.items())
    held = all(one >= ten for one, ten in pairs.values())
    return Verdict("with 1 % of the training set ELMo is as good as the baseline with 10 % (Figure 1)", held, numbers)


_CLAIMS: tuple[Callable[[Lab], Verdict], ...] = (
    _every_task,
    _error_cut,
    _last_helps,
    _all_layers,
    _small_lambda,
    _both_ends,
    _senses_high,
    _tags_low,
    _less_data,
)


def _gains(lab: Lab, one: Callable[[str], Settings], other: Callable[[str], Settings]) -> dict[str, float]:
    """How much better one is than the other on the development sets of the tasks of Tables 2 and 3, in percent.

    The mean over the seeds that both were done with.
    """
    found = {}
    for name in [name for name in CHOSEN if name in lab.study.tasks]:
        ours, theirs = dev_scores(lab, name, one(name)), dev_scores(lab, name, other(name))
        if both := ours.keys() & theirs.keys():
            found[name] = 100 * mean(ours[seed] - theirs[seed] for seed in both)
    if not found:
        raise NotDoneError("no task was trained both ways")
    return found


def _always(gains: Mapping[str, float]) -> bool:
    """Better on every task that there is."""
    return all(gain > 0 for gain in gains.values())


def _listed(gains: Mapping[str, float], form: str) -> str:
    return ", ".join(f"{name} {gain:{form}}" for name, gain in gains.items())
