"""Questions about a paragraph: bi-directional attention with self-attention (Clark and Gardner 2017), the paper's A.3.

The answer is a stretch of the paragraph: the model scores each token as its first and as its last. The recurrent layers
are LSTMs instead of GRUs, as in every task here.

Shapes: B questions, T tokens of a paragraph, J of a question, X width of what the first LSTMs and ELMo say of a token,
H of what the layers behind them say, W tokens of the longest answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmo.errors import ElmoError
from elmo.tasks.batch import Batch
from elmo.tasks.encoder import Sentences, TokenEncoder, Tokens
from elmo.tasks.layers import IMPOSSIBLE, BiLSTM, RowDropout, masked_softmax
from elmo.tasks.question_metrics import question_scores
from elmo.tasks.squad import Question, read_squad
from elmo.tasks.task import Task, TaskModel
from elmo.tasks.texts import two_texts
from elmo.tasks.vectors import FrozenLayers


@dataclass(frozen=True, kw_only=True)
class QuestionSettings:
    """Sizes of the model."""

    hidden: int = 128
    """Of the LSTMs, each direction; the layers between them are twice as wide."""
    dropout: float = 0.1
    """Before each LSTM, each attention and each layer between them."""
    longest_answer: int = 17
    """Tokens that an answer may have."""
    longest_paragraph: int = 300
    """Tokens of a paragraph that the model is trained with; longer ones are only answered."""
    anywhere: bool = False
    """Whether the answer's words are right wherever they stand in the paragraph: for data that does not say where."""

    def __post_init__(self) -> None:
        """Refuse values that no model can have."""
        for name in ("hidden", "longest_answer", "longest_paragraph"):
            if getattr(self, name) < 1:
                raise ElmoError(f"model.{name} is {getattr(self, name)!r}: give 1 or more")
        if not 0 <= self.dropout < 1:
            raise ElmoError(f"model.dropout is {self.dropout!r}: give a number from 0 to below 1")


@dataclass(frozen=True)
class QuestionBatch(Batch):
    """Questions, their paragraphs and where the answers are."""

    paragraphs: Sentences
    questions: Sentences
    firsts: Tensor
    """`(B, T)`, true where the answer may begin; nowhere if it is not known."""
    lasts: Tensor
    """`(B, T)`, true where it may end."""


class Relevance(nn.Module):
    """How much a vector `b` has to say to another, `a`: `w . [b; a * b]`.

    Seo et al. 2017 have `[a; b; a * b]`; but softmax over the `b` takes away again what is the same for all of them.
    """

    def __init__(self, width: int) -> None:
        """Start as a linear layer would."""
        super().__init__()
        self.weights = nn.Parameter(torch.empty(2, width).uniform_(-(width**-0.5), width**-0.5))

    def forward(self, a_BTX: Tensor, b_BJX: Tensor) -> Tensor:
        """Each with each: `(B, T, J)`, without ever having `T * J` vectors."""
        own, both = self.weights.unbind()
        return (own + a_BTX * both) @ b_BJX.transpose(1, 2)


class QuestionAttention(nn.Module):
    """What the paragraph's tokens learn of the question, and the question of the paragraph."""

    def __init__(self, width: int, output: int, dropout: float) -> None:
        """From vectors of one width to those of another."""
        super().__init__()
        self.relevance = Relevance(width)
        self.own = nn.Linear(width, 1, bias=False)
        self.dropout = RowDropout(dropout)
        self.merge = nn.Linear(4 * width, output)

    def forward(self, paragraph_BTX: Tensor, question_BJX: Tensor, mask_BT: Tensor, mask_BJ: Tensor) -> Tensor:
        """`(B, T, output)`."""
        scores_BTJ = self.relevance(paragraph_BTX, question_BJX)
        asked_BTX = masked_softmax(scores_BTJ, mask_BJ[:, None, :]) @ question_BJX
        nearest_BT1 = scores_BTJ.masked_fill(~mask_BJ[:, None, :], IMPOSSIBLE).amax(dim=2, keepdim=True)
        weights_BT = (nearest_BT1 + self.own(paragraph_BTX)).squeeze(2)
        found_B1X = masked_softmax(weights_BT, mask_BT)[:, None, :] @ paragraph_BTX
        parts = [paragraph_BTX, asked_BTX, paragraph_BTX * asked_BTX, found_B1X * asked_BTX]
        return torch.relu(self.merge(self.dropout(torch.cat(parts, dim=-1))))


class SelfAttention(nn.Module):
    """What the tokens of a paragraph learn of each other, added to what they were."""

    def __init__(self, hidden: int, dropout: float) -> None:
        """Keep the width, twice `hidden`."""
        super().__init__()
        self.lstm = BiLSTM(2 * hidden, hidden, dropout=dropout)
        self.relevance = Relevance(2 * hidden)
        self.dropout = RowDropout(dropout)
        self.merge = nn.Linear(6 * hidden, 2 * hidden)

    def forward(self, x_BTH: Tensor, mask_BT: Tensor, lengths: Sequence[int]) -> Tensor:
        """`(B, T, H)`; no token sees itself."""
        own_BTH = self.dropout(self.lstm(x_BTH, lengths))
        itself_TT = torch.eye(x_BTH.shape[1], dtype=torch.bool, device=x_BTH.device)
        others_BTH = masked_softmax(self.relevance(own_BTH, own_BTH), mask_BT[:, None, :] & ~itself_TT) @ own_BTH
        merged = self.merge(self.dropout(torch.cat([own_BTH, others_BTH, own_BTH * others_BTH], dim=-1)))
        return x_BTH + torch.relu(merged)


class QuestionModel(TaskModel[Question, str]):
    """Reads question and paragraph, attends, and says where the answer begins and ends."""

    def __init__(self, encoder: TokenEncoder, settings: QuestionSettings) -> None:
        """Set it up."""
        super().__init__()
        self.encoder = encoder
        self.longest_answer = settings.longest_answer
        self.anywhere = settings.anywhere
        hidden, dropout = settings.hidden, settings.dropout
        width = 2 * hidden + encoder.output_dim
        self.reading = BiLSTM(encoder.input_dim, hidden, dropout=dropout)
        self.dropout = RowDropout(dropout)
        self.attention = QuestionAttention(width, 2 * hidden, dropout)
        self.self_attention = SelfAttention(hidden, dropout)
        self.first_lstm = BiLSTM(2 * hidden, hidden, dropout=dropout)
        self.last_lstm = BiLSTM(4 * hidden, hidden, dropout=dropout)
        self.first = nn.Linear(2 * hidden, 1, bias=False)
        self.last = nn.Linear(2 * hidden, 1, bias=False)

    def collate(self, examples: Sequence[Question], frozen: FrozenLayers | None) -> QuestionBatch:
        """Tokens, and where the answers are, if that is known."""
        paragraphs = self.encoder.collate([one.paragraph.tokens for one in examples], frozen)
        firsts_BT, lasts_BT = np.zeros((2, *paragraphs.mask.shape), np.bool_)
        for row, one in enumerate(examples):
            given = () if one.span is None else (one.span,)
            for first, last in one.spans if self.anywhere else given:
                firsts_BT[row, first] = lasts_BT[row, last] = True
        questions = self.encoder.collate([one.text.tokens for one in examples], frozen)
        return QuestionBatch(paragraphs, questions, torch.from_numpy(firsts_BT), torch.from_numpy(lasts_BT))

    def loss(self, batch: QuestionBatch) -> Tensor:
        """`-ln p` of the answer's first token and of its last, summed; the mean over the questions.

        Where the answer may stand in several places, `p` is the sum over them, as Clark and Gardner have it for text
        whose answers nobody has marked.
        """
        first_BT, last_BT = self._scores(batch)
        return surprise(first_BT, batch.firsts) + surprise(last_BT, batch.lasts)

    def answers(self, batch: QuestionBatch, examples: Sequence[Question]) -> list[str]:
        """The best stretch of each paragraph."""
        spans = best_spans(*self._scores(batch), self.longest_answer).tolist()
        return [one.paragraph.between(first, last) for one, (first, last) in zip(examples, spans, strict=True)]

    def _scores(self, batch: QuestionBatch) -> tuple[Tensor, Tensor]:
        """Of each token as the first and as the last, `(B, T)` twice, impossible behind a paragraph's end."""
        mask, lengths = batch.paragraphs.mask, batch.paragraphs.lengths
        paragraph, question = self._read(batch.paragraphs), self._read(batch.questions)
        aware = self.attention(paragraph, question, mask, batch.questions.mask)
        aware = self.self_attention(aware, mask, lengths)
        begins = self.first_lstm(aware, lengths)
        ends = self.last_lstm(torch.cat([aware, begins], dim=-1), lengths)
        first_BT, last_BT = (
            score(self.dropout(x)).squeeze(2).float().masked_fill(~mask, IMPOSSIBLE)
            for score, x in ((self.first, begins), (self.last, ends))
        )
        return first_BT, last_BT

    def _read(self, sentences: Sentences) -> Tensor:
        """`(B, T, X)`; ELMo's output place is that of the lowest LSTMs."""
        encoded = self.encoder(sentences)
        hidden: Tensor = self.reading(encoded.inputs, sentences.lengths)
        if encoded.output is not None:
            hidden = torch.cat([hidden, encoded.output], dim=-1)
        dropped: Tensor = self.dropout(hidden)
        return dropped


def surprise(scores_BT: Tensor, right_BT: Tensor) -> Tensor:
    """`-ln p` of the right tokens together, where the scores are what a softmax takes; the mean over the rows."""
    among_right_B = torch.logsumexp(scores_BT.masked_fill(~right_BT, IMPOSSIBLE), dim=1)
    return (torch.logsumexp(scores_BT, dim=1) - among_right_B).mean()


def best_spans(first_BT: Tensor, last_BT: Tensor, longest: int) -> Tensor:
    """First and last token, `(B, 2)`, of the best stretch of at most so many tokens, by the sum of their scores."""
    last_BTW = F.pad(last_BT, (0, longest - 1), value=IMPOSSIBLE).unfold(1, longest, 1)
    best_B = (first_BT[:, :, None] + last_BTW).flatten(1).argmax(dim=1)
    first_B = best_B // longest
    return torch.stack([first_B, first_B + best_B % longest], dim=1)


class Questions(Task[Question, str]):
    """Answers that stand in a paragraph, as in SQuAD 1.1."""

    name = "squad"
    score = "f1"
    model_settings = QuestionSettings
    raw_lines = False
    defaults: ClassVar[Mapping[str, Any]] = {
        "encoder": {"elmo": "both", "characters": 100, "dropout": 0.0},
        "optimizer": {"rate": 0.002},
        "train": {"batch_size": 64, "epochs": 10, "precision": "tf32"},
    }

    def read(self, path: str) -> list[Question]:
        """Questions of SQuAD's JSON."""
        return read_squad(path)

    def for_training(self, examples: Sequence[Question], settings: QuestionSettings) -> list[Question]:
        """Those whose paragraph is not too long: attention needs its square in memory."""
        return [one for one in examples if len(one.paragraph.tokens) <= settings.longest_paragraph]

    def sentences(self, example: Question) -> Sequence[Tokens]:
        """The paragraph, as one, and the question."""
        return example.paragraph.tokens, example.text.tokens

    def model(self, encoder: TokenEncoder, labels: Sequence[str], settings: QuestionSettings) -> QuestionModel:
        """BiDAF with self-attention; it chooses among tokens, and so has no labels."""
        return QuestionModel(encoder, settings)

    def scores(self, examples: Sequence[Question], answers: Sequence[str]) -> dict[str, float]:
        """`em` and `f1`, by SQuAD's own normalisation."""
        return question_scores([one.answers for one in examples], answers)

    def parse(self, lines: Sequence[str]) -> list[Question]:
        """A question and a paragraph a line, with a tab between them, or an object with question and context."""
        return [Question(*texts) for texts in two_texts(lines, ("question", "context"))]

    def record(self, example: Question, answer: str) -> dict[str, Any]:
        """Question, paragraph and answer."""
        return {"question": example.text.raw, "context": example.paragraph.raw, "answer": answer}

    def show(self, example: Question, answer: str) -> str:
        """The answer."""
        return answer
