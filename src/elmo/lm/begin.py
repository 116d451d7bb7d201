"""What a run begins with instead of start values: a model, a head over the corpus's words, what Adagrad remembered."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from elmo.errors import ElmoError
from elmo.formats import tf_checkpoint
from elmo.formats.bundle import Bundle, empty_bilm, fill_bilm
from elmo.lm.batches import Corpus
from elmo.lm.network import LanguageModel
from elmo.lm.optimizers import Optimizer
from elmo.lm.settings import TrainConfig
from elmo.lm.softmax import AdaptiveHead, Head, SoftmaxHead
from elmo.lm.start import new_head
from elmo.model import BiLM
from elmo.vocab import Vocabulary


@dataclass(frozen=True)
class Start:
    """A language model to go on with."""

    lm: LanguageModel
    """It, ready to be trained."""
    sums: Mapping[str, Tensor]
    """Adagrad's sums of squares by the names of the weights; empty where the model's file has none."""

    def recall(self, optimizer: Optimizer) -> None:
        """Give an optimizer what it would have remembered; only Adagrad has a use for it."""
        for name, value in self.sums.items():
            if (known := optimizer.state.get(f"{name}.sum")) is not None:
                known.copy_(value)


def read_start(model: Bundle, path: Path, corpus: Corpus, settings: TrainConfig) -> Start:
    """What pretraining goes on with: a model of the settings' sizes and the corpus's words, and what is at its path."""
    if model.config != settings.model:
        theirs, ours = model.config.to_options(), settings.model.to_options()
        raise ElmoError(f"{path} is another model than the config's [model]: it is {theirs}, the config says {ours}")
    if model.vocab is not None and model.vocab.words != corpus.vocab.words:
        raise ElmoError(
            f"{path} has another vocabulary than the prepared text: prepare it with --vocab and the model's "
            "vocabulary, or use elmo finetune, which moves a head to other words"
        )
    prefix = tf_checkpoint.find_prefix(path) if model.source == "tensorflow" else None
    sums = {} if prefix is None else tf_checkpoint.read_accumulators(prefix, model.config)
    if sums and model.head is None:
        raise ElmoError(f"{path}: put the vocab.txt of the checkpoint beside it, as its softmax is part of the start")
    return Start(start_model(model, corpus, settings), sums)


def start_model(model: Bundle, corpus: Corpus, settings: TrainConfig) -> LanguageModel:
    """A copy of a model, ready to be trained, whose head is over the vocabulary of a corpus."""
    if model.config.n_words is not None and model.words.words != corpus.vocab.words:
        raise ElmoError("this model reads words, of its own vocabulary only: it needs --keep-vocab")
    lm = LanguageModel(_copy_bilm(model), _start_head(model, corpus, settings))
    for weight in lm.parameters():
        weight.data = weight.data.contiguous()  # other formats are read transposed, and kernels know no strides
    return lm


def _copy_bilm(model: Bundle) -> BiLM:
    bilm = empty_bilm(model.config)
    weights = {name: model.network.read(name).float().cpu().clone() for name in bilm.state_dict()}
    return fill_bilm(bilm, weights).train().requires_grad_(True)


def _start_head(model: Bundle, corpus: Corpus, settings: TrainConfig) -> Head:
    old = model.head
    if old is None:
        return new_head(settings, corpus)
    assert model.vocab is not None
    if isinstance(old, AdaptiveHead) != (settings.softmax.kind == "adaptive"):
        raise ElmoError(f"softmax.kind is {settings.softmax.kind!r}, the model's head is of another kind")
    if model.vocab.words == corpus.vocab.words:
        return copy.deepcopy(old).float().cpu().requires_grad_(True)
    if isinstance(old, AdaptiveHead):
        raise ElmoError(
            "the model's head is an adaptive softmax, whose clusters of words follow from its vocabulary: it cannot "
            "take another one; give --keep-vocab, or take the head off (elmo convert --without-head) for a new one"
        )
    return _moved_head(old, model.vocab, corpus)


def _moved_head(old: SoftmaxHead, known: Vocabulary, corpus: Corpus) -> SoftmaxHead:
    """Rows and biases of the known words, and of the others the row of `<UNK>` with a share of its probability."""
    words = corpus.vocab
    places = torch.tensor(known.ids(words.words))
    (unknown,) = words.ids(["<UNK>"])
    shares = torch.tensor([word not in known for word in words])
    shares[unknown] = True
    counts = torch.from_numpy(corpus.counts().astype("float64")) + 1
    with torch.no_grad():
        weight, bias = (tensor.float().cpu()[places] for tensor in (old.weight, old.bias))
        bias[shares] += torch.log(counts[shares] / counts[shares].sum()).float()
    with torch.device("meta"):  # start values would only be overwritten
        head = SoftmaxHead(*weight.shape)
    head.load_state_dict({"weight": weight, "bias": bias}, assign=True)
    return head
