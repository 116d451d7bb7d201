"""Parts of speech by a linear probe: multinomial logistic regression on the frozen vectors of one layer.

Section 5.3 of the paper: what a linear classifier can tell from a layer alone is what that layer has to say.

Shapes: L layers, N tokens, D width of a layer, K tags, B tokens of a batch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from elmo.embed import Embedder
from elmo.errors import ElmoError
from elmo.tasks.metrics import accuracy
from elmo.tasks.readers import TaggedSentence
from elmo.tasks.vectors import token_vectors

Part = Literal["train", "dev", "test"]

_UNKNOWN = -1  # a tag that training has not seen: no answer to it can be right
_AT_ONCE = 2**14  # tokens, where no gradient is taken


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """How a probe is trained: AdamW in small batches, the best epoch by accuracy on the development set kept."""

    epochs: int = 40
    """At most."""
    batch_size: int = 1024
    """Tokens."""
    rate: float = 0.003
    """Halved after each epoch whose loss on the development set is no better than the best."""
    patience: int = 4
    """Epochs without a better accuracy on the development set, after which training ends."""
    seed: int = 0
    """Decides the order of the tokens; all else is without chance."""

    def __post_init__(self) -> None:
        """Refuse what cannot be, by name."""
        for name in ("epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ElmoError(f"{name} is {value!r}: give a whole number, 1 or more")
        if type(self.seed) is not int or self.seed < 0:
            raise ElmoError(f"seed is {self.seed!r}: give a whole number, 0 or more")
        if not 0 < self.rate < 1:
            raise ElmoError(f"rate is {self.rate!r}: give a number between 0 and 1")


@dataclass(frozen=True)
class Examples:
    """Tokens of a data set."""

    vectors: NDArray[np.float16]
    """`(N, D)`, maybe of a mapped file."""
    tags: NDArray[np.int64]
    """`(N,)`: numbers of the tags, -1 for one that training has not seen."""


@dataclass(frozen=True)
class Probe:
    """A trained linear classifier."""

    weight: Tensor
    """`(K, D)`."""
    bias: Tensor
    """`(K,)`."""
    mean: Tensor
    """`(D,)`, of the training vectors."""
    scale: Tensor
    """`(D,)`, their standard deviations."""
    epochs: int
    """After how many epochs it was the best."""

    def logits(self, vectors_BD: Tensor) -> Tensor:
        """`(B, K)`."""
        return F.linear((vectors_BD.float() - self.mean) / self.scale, self.weight, self.bias)

    def answers(self, vectors_ND: NDArray[np.float16]) -> NDArray[np.int64]:
        """The best tag of each token, `(N,)`."""
        with torch.inference_mode():
            best = [self.logits(_rows(piece, self.mean.device)).argmax(dim=1).cpu() for piece in _pieces(vectors_ND)]
        found: NDArray[np.int64] = torch.cat(best).numpy()
        return found


@dataclass(frozen=True)
class LayerScore:
    """How well tags are told from one layer."""

    layer: int
    dev: float
    """Accuracy on the development set."""
    test: float
    """Accuracy on the test set."""
    epochs: int


@dataclass(frozen=True)
class TagScores:
    """What `probe_tags` found."""

    tags: tuple[str, ...]
    tokens: dict[Part, int]
    baseline_dev: float
    """Accuracy of the tag that each word has most often in training (any new word: the most frequent of all)."""
    baseline_test: float
    layers: tuple[LayerScore, ...]


def train_probe(
    train: Examples, dev: Examples, n_tags: int, settings: ProbeSettings, device: torch.device | None = None
) -> Probe:
    """Train a probe; the same data, seed and machine give the same bits."""
    if not len(train.tags) or not len(dev.tags):
        raise ElmoError("a probe needs tokens to train on and to be chosen by: a data set is empty")
    mean, scale = _standard(train.vectors, device)
    probe = Probe(
        torch.zeros(n_tags, len(mean), device=device, requires_grad=True),
        torch.zeros(n_tags, device=device, requires_grad=True),
        mean,
        scale,
        0,
    )
    optimizer = torch.optim.AdamW([probe.weight, probe.bias], lr=settings.rate, weight_decay=0.0)
    order = np.random.default_rng(settings.seed)
    best, best_accuracy, best_loss = probe, -1.0, float("inf")
    for epoch in range(1, settings.epochs + 1):
        places = order.permutation(len(train.tags))
        for start in range(0, len(places), settings.batch_size):
            batch = np.sort(places[start : start + settings.batch_size])  # a mapped file is read forward
            tags_B = torch.from_numpy(train.tags[batch]).to(mean.device)
            optimizer.zero_grad()
            F.cross_entropy(probe.logits(_rows(train.vectors[batch], mean.device)), tags_B).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found, loss = _validate(probe, dev)
        if found > best_accuracy:
            weights = probe.weight.detach().clone(), probe.bias.detach().clone()
            best, best_accuracy = Probe(*weights, mean, scale, epoch), found
        elif epoch - best.epochs >= settings.patience:
            break
        if loss >= best_loss:
            for group in optimizer.param_groups:
                group["lr"] /= 2
        best_loss = min(loss, best_loss)
    return best


def probe_tags(
    embedder: Embedder,
    parts: dict[Part, list[TaggedSentence]],
    settings: ProbeSettings,
    *,
    embedding: Callable[[str, int, int], None] = lambda part, sentences, tokens: None,
    training: Callable[[int], None] = lambda layer: None,
) -> TagScores:
    """Train and test a probe on each layer of an embedder, which has a list of layers in its settings.

    Args:
        embedder: gives the vectors; its device is the probe's, too.
        parts: sentences of the three data sets.
        settings: how to train.
        embedding: told, of each data set, how many sentences and tokens are embedded.
        training: told which layer is trained on next.
    """
    names = tuple(sorted({tag for sentence in parts["train"] for tag in sentence.tags}))
    number = {tag: i for i, tag in enumerate(names)}
    words = {part: [word for one in parts[part] for word in one.tokens] for part in parts}
    tags = {part: [tag for one in parts[part] for tag in one.tags] for part in parts}
    scores = []
    vectors = {}
    for part, sentences in parts.items():

        def report(sentences: int, tokens: int, part: str = part) -> None:
            embedding(part, sentences, tokens)

        vectors[part] = token_vectors(embedder, [sentence.tokens for sentence in sentences], report)
    ids = {part: np.array([number.get(tag, _UNKNOWN) for tag in tags[part]], np.int64) for part in parts}
    for place, layer in enumerate(embedder.layers):
        training(layer)
        train, dev, test = (Examples(vectors[part][place], ids[part]) for part in ("train", "dev", "test"))
        probe = train_probe(train, dev, len(names), settings, embedder.device)
        found = [accuracy(part.tags.tolist(), probe.answers(part.vectors).tolist()) for part in (dev, test)]
        scores.append(LayerScore(layer, found[0], found[1], probe.epochs))
    usual = most_frequent_tags(words["train"], tags["train"])
    baseline = [accuracy(tags[part], [usual(word) for word in words[part]]) for part in ("dev", "test")]
    return TagScores(names, {part: len(words[part]) for part in parts}, baseline[0], baseline[1], tuple(scores))


def most_frequent_tags(words: Sequence[str], tags: Sequence[str]) -> Callable[[str], str]:
    """A tagger that knows no context: the tag that a word has most often; for new words, the most frequent of all."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for word, tag in zip(words, tags, strict=True):
        counts[word][tag] += 1
    best = {word: found.most_common(1)[0][0] for word, found in counts.items()}
    usual = Counter(tags).most_common(1)[0][0]
    return lambda word: best.get(word, usual)


def _pieces(vectors_ND: NDArray[np.float16]) -> list[NDArray[np.float16]]:
    return [vectors_ND[start : start + _AT_ONCE] for start in range(0, len(vectors_ND), _AT_ONCE)]


def _rows(vectors_BD: NDArray[np.float16], device: torch.device | None) -> Tensor:
    return torch.from_numpy(np.array(vectors_BD)).to(device).float()


def _standard(vectors_ND: NDArray[np.float16], device: torch.device | None) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each dimension; where all are alike, 1 for the latter."""
    total = square = np.zeros(vectors_ND.shape[1])
    for piece in _pieces(vectors_ND):
        exact = piece.astype(np.float64)
        total, square = total + exact.sum(axis=0), square + np.square(exact).sum(axis=0)
    mean = total / len(vectors_ND)
    scale = np.sqrt(np.maximum(square / len(vectors_ND) - mean**2, 0))
    scale[scale < 1e-6] = 1
    return tuple(torch.from_numpy(x.astype(np.float32)).to(device) for x in (mean, scale))  # type: ignore[return-value]


def _validate(probe: Probe, dev: Examples) -> tuple[float, float]:
    """Accuracy, and mean loss over the tags that training has seen."""
    right, loss = 0, 0.0
    with torch.inference_mode():
        for start, piece in zip(range(0, len(dev.tags), _AT_ONCE), _pieces(dev.vectors), strict=True):
            logits = probe.logits(_rows(piece, probe.mean.device))
            tags = torch.from_numpy(dev.tags[start : start + _AT_ONCE]).to(logits.device)
            right += int((logits.argmax(dim=1) == tags).sum())
            loss += float(F.cross_entropy(logits, tags, ignore_index=_UNKNOWN, reduction="sum"))
    return right / len(dev.tags), loss / max(int((dev.tags != _UNKNOWN).sum()), 1)
