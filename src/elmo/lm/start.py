"""What a biLM's training starts from: a model with the start values of a seed, that fits the corpus."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from elmo.errors import ElmoError
from elmo.lm.batches import Corpus
from elmo.lm.network import LanguageModel
from elmo.lm.settings import TrainConfig
from elmo.lm.softmax import AdaptiveHead, Head, SoftmaxHead
from elmo.model import BiLM


def check_fits(config: TrainConfig, corpus: Corpus) -> None:
    """Refuse a model that cannot read a corpus or predict its words."""
    n_words = len(corpus.vocab)
    if config.model.n_words is not None and config.model.n_words != n_words:
        raise ElmoError(
            f"model.n_tokens_vocab is {config.model.n_words:,}, the corpus has a vocabulary of {n_words:,} words"
        )
    cnn = config.model.char_cnn
    width = int(corpus.characters().shape[1])
    if cnn is not None and cnn.max_characters_per_token != width:
        raise ElmoError(
            f"model.char_cnn.max_characters_per_token is {cnn.max_characters_per_token}, the corpus was prepared "
            f"with {width}"
        )


def fingerprint(lm: LanguageModel) -> str:
    """A digest of a model's weights."""
    digest = hashlib.sha256()
    for weight in lm.state_dict().values():
        digest.update(weight.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def new_language_model(config: TrainConfig, corpus: Corpus) -> LanguageModel:
    """A model with the start values of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        bilm = BiLM(config.model)
        return LanguageModel(bilm, _new_head(config, corpus))


def new_head(config: TrainConfig, corpus: Corpus) -> Head:
    """A head over the corpus's vocabulary with the start values of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return _new_head(config, corpus)


def _new_head(config: TrainConfig, corpus: Corpus) -> Head:
    n_words, dim = len(corpus.vocab), config.model.lstm.projection_dim
    if config.softmax.kind == "adaptive":
        return AdaptiveHead(n_words, dim, config.softmax.cutoffs)
    head = SoftmaxHead(n_words, dim)
    if config.softmax.start == "unigram":
        counts = torch.from_numpy(np.asarray(corpus.counts(), dtype=np.float64)) + 1
        head.bias.data.copy_(torch.log(counts / counts.sum()))
    return head
