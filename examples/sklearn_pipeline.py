"""Where is a sentence from? scikit-learn's search, over layers of ELMo: `python examples/sklearn_pipeline.py`.

The sentences are those of held_out.tsv (see held_out.md): science, diplomacy and novels.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline

from elmo.integrations.sklearn import ElmoVectorizer

SOURCES = ("elife_science", "frus_diplomatic", "gutenberg_books")
EACH = 30


def sentences_and_sources() -> tuple[list[str], list[str]]:
    """As many sentences of each source."""
    lines = (Path(__file__).parent / "held_out.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    chosen = [row for source in SOURCES for row in [row for row in rows if row[0] == source][:EACH]]
    return [text for _, text in chosen], [source for source, _ in chosen]


def main() -> None:
    """Search for the best layer, and ask the winner about a new sentence."""
    sentences, sources = sentences_and_sources()
    with TemporaryDirectory() as memory:  # what was embedded for one C is not embedded again for the next
        steps = [("elmo", ElmoVectorizer()), ("classifier", LogisticRegression(max_iter=1000))]
        grid = {"elmo__layers": [0, "top"], "classifier__C": [0.1, 10.0]}
        search = GridSearchCV(Pipeline(steps, memory=memory), grid, cv=2).fit(sentences, sources)
    for setting, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
        print(f"layers {setting['elmo__layers']!s:<8} C {setting['classifier__C']:<5} accuracy {score:.3f}")
    sentence = "The ambassador told the Secretary that the talks would go on ."
    print(f"{sentence} -> {search.predict([sentence])[0]}")


if __name__ == "__main__":
    main()
