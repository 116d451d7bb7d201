"""Coreference: which spans of a document are of the same thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from elmo.tasks.coref_metrics import coref_scores
from elmo.tasks.coref_model import CorefModel, CorefSettings
from elmo.tasks.coref_reader import Clusters, Document, read_documents
from elmo.tasks.encoder import TokenEncoder, Tokens
from elmo.tasks.task import Task


class Coreference(Task[Document, Clusters]):
    """Clusters of mentions: OntoGUM's CoNLL-U or the columns of CoNLL 2012."""

    name = "coref"
    score = "f1"
    model_settings = CorefSettings
    # the paper's appendix mixes without a penalty; the rest is as Lee et al. have it, who take a document a step
    defaults: ClassVar[Mapping[str, Any]] = {
        "encoder": {"penalty": 0.0, "dropout": 0.5},
        "train": {"batch_size": 1, "epochs": 30, "patience": 8},
    }

    def read(self, path: str) -> list[Document]:
        """Documents with their clusters."""
        return read_documents(path)

    def sentences(self, example: Document) -> Sequence[Tokens]:
        """Those of the document."""
        return example.sentences

    def model(self, encoder: TokenEncoder, labels: Sequence[str], settings: CorefSettings) -> CorefModel:
        """There are no labels."""
        return CorefModel(encoder, settings)

    def scores(self, examples: Sequence[Document], answers: Sequence[Clusters]) -> dict[str, float]:
        """The mean F1 of CoNLL 2012, and each of its three."""
        return coref_scores((one.clusters, answer) for one, answer in zip(examples, answers, strict=True))

    def parse(self, lines: Sequence[str]) -> list[Document]:
        """A sentence a line, tokens with spaces between them; a blank line ends a document."""
        blocks: list[list[tuple[str, ...]]] = [[]]
        for line in lines:
            if line.strip():
                blocks[-1].append(tuple(line.split()))
            elif blocks[-1]:
                blocks.append([])
        return [
            Document(str(number), tuple(sentences), ("",) * len(sentences))
            for number, sentences in enumerate(blocks, start=1)
            if sentences
        ]

    def record(self, example: Document, answer: Clusters) -> dict[str, Any]:
        """Sentences, and clusters of mentions: first token and the one behind the last, counted over all sentences."""
        return {
            "document": example.name,
            "sentences": [list(tokens) for tokens in example.sentences],
            "clusters": [[list(mention) for mention in cluster] for cluster in answer],
        }

    def show(self, example: Document, answer: Clusters) -> str:
        """A line for each cluster, with the words of its mentions."""
        tokens = example.tokens
        rows = ["; ".join(" ".join(tokens[first:end]) for first, end in cluster) for cluster in answer]
        return "\n".join([f"document {example.name}:", *(f"  {row}" for row in rows or ["nothing mentioned twice"])])
