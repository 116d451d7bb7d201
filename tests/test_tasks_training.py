"""How a task's model is trained: what an epoch is, when a run ends, which weights stay, what resuming asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import elmo
from conftest import small_options, write_model
from elmo.errors import ElmoError
from elmo.lm.checkpoint import read_tensors
from elmo.tasks.questions import Questions
from elmo.tasks.readers import TaggedSentence
from elmo.tasks.run import Data, Trained, new_model, train_task
from elmo.tasks.settings import TaskConfig
from elmo.tasks.squad import Question
from elmo.tasks.tagging import Entities, Tags
from elmo.tasks.texts import Text
from elmo.tasks.training import _LEAST_STEPS, _MOST_PAIRS, TaskTraining, _answered_together
from test_tasks_kit import sentences, small

NONE = {"elmo": "none"}


@pytest.fixture(scope="module")
def bilm(tmp_path_factory: pytest.TempPathFactory) -> elmo.Model:
    folder = tmp_path_factory.mktemp("bilm")
    write_model(folder, small_options())
    return elmo.load(folder)


class Scripted(Entities):
    """Scores that were written down before, one for each time that the development set is answered."""

    def __init__(self, *scores: float) -> None:
        self.script = list(scores)
        self.asked = 0

    def scores(self, examples: Sequence[TaggedSentence], answers: Sequence[Tags]) -> dict[str, float]:
        self.asked += 1
        return {"f1": self.script[min(self.asked, len(self.script)) - 1]}


def trained(
    task: Entities, config: TaskConfig, folder: Path, bilm: elmo.Model, train: int = 30
) -> Trained[TaggedSentence, Tags]:
    return train_task(task, config, Data(sentences(train), sentences(10, 1)), folder, bilm=bilm)


def steps(config: TaskConfig, examples: int, bilm: elmo.Model) -> int:
    data = Data(sentences(examples), sentences(5, 1))
    model, _ = new_model(Entities(), config, data, bilm)
    return TaskTraining(Entities(), config, model, data.train, data.dev).steps_an_epoch


class TestEpochs:
    def test_few_examples_are_passed_over_until_an_epoch_has_some_steps(self, bilm: elmo.Model) -> None:
        config = small(encoder=NONE)  # batches of 8
        assert [steps(config, examples, bilm) for examples in (1, 8, 9, 40, 80, 160)] == [10, 10, 10, 10, 10, 20]
        assert steps(config, 33, bilm) == 10  # 5 a pass
        assert steps(config, 24, bilm) == 12 >= _LEAST_STEPS  # 3 a pass: whole passes

    def test_more_passes_make_a_longer_epoch(self, bilm: elmo.Model) -> None:
        assert steps(small(encoder=NONE, train={"passes": 3}), 80, bilm) == 30
        assert steps(small(encoder=NONE, train={"passes": 3}), 8, bilm) == 10

    def test_a_model_learns_from_a_handful_with_the_settings_that_are_there(
        self, bilm: elmo.Model, tmp_path: Path
    ) -> None:
        config = TaskConfig.of(Entities(), {"encoder": {"elmo": "none", "vectors": "none"}, "model": {"hidden": 24}})
        found = trained(Entities(), config, tmp_path, bilm, train=40).result
        assert found.dev["f1"] > 0.9


class TestBestWeights:
    @pytest.mark.parametrize(("patience", "epochs"), [(0, 6), (1, 3), (2, 4), (3, 6)])
    def test_training_ends_when_nothing_was_better_for_as_long_as_patience_lasts(
        self, bilm: elmo.Model, tmp_path: Path, patience: int, epochs: int
    ) -> None:
        task = Scripted(0.2, 0.5, 0.4, 0.3, 0.6, 0.1)
        config = small(encoder=NONE, train={"epochs": 6, "patience": patience})
        result = trained(task, config, tmp_path, bilm).result
        assert len(result.curve) == epochs
        assert result.best_epoch == (5 if epochs == 6 else 2)

    def test_the_weights_of_the_best_epoch_are_the_model(self, bilm: elmo.Model, tmp_path: Path) -> None:
        config = small(encoder=NONE, train={"epochs": 3, "patience": 0})
        model = trained(Scripted(0.2, 0.9, 0.1), config, tmp_path, bilm).model
        stored = {part: read_tensors(tmp_path / f"{part}.safetensors")[1] for part in ("best", "last")}
        for name, weight in model.state_dict().items():
            assert torch.equal(weight, stored["best"][f"model.{name}"])
        assert any(not torch.equal(stored["best"][name], stored["last"][name]) for name in stored["best"])


class TestSettingsMatter:
    def weights(self, config: TaskConfig, folder: Path, bilm: elmo.Model) -> Mapping[str, torch.Tensor]:
        return trained(Entities(), config, folder, bilm).model.state_dict()

    @pytest.mark.parametrize(
        "changes",
        [
            {"encoder": {"layer_norm": True}},
            {"encoder": {"layers": "top"}},
            {"encoder": {"penalty": 5.0}},
            {"encoder": {"elmo_dropout": 0.1}},
            {"train": {"precision": "bf16"}},
            {"seed": 1},
        ],
    )
    def test_another_value_makes_another_model(self, bilm: elmo.Model, tmp_path: Path, changes: dict[str, Any]) -> None:
        plain: dict[str, Any] = {"encoder": {"elmo": "input"}, "train": {"epochs": 1, "batch_size": 16}}
        other = {name: plain[name] | more if isinstance(more, dict) else more for name, more in changes.items()}
        before = self.weights(small(**plain), tmp_path / "plain", bilm)
        again = self.weights(small(**plain), tmp_path / "again", bilm)
        after = self.weights(small(**{**plain, **other}), tmp_path / "other", bilm)
        assert all(torch.equal(before[name], again[name]) for name in before)
        assert any(not torch.equal(before[name], after[name]) for name in after)


class TestResuming:
    def test_another_biLM_or_other_vectors_are_not_gone_on_with(  # noqa: N802 - its name
        self, bilm: elmo.Model, tmp_path: Path
    ) -> None:
        write_model(tmp_path / "other", small_options(), seed=1)
        (tmp_path / "vectors.txt").write_text("in 1 0\nsaw 0 1\n")
        config = small(encoder={"elmo": "input", "vectors": str(tmp_path / "vectors.txt")}, train={"epochs": 1})
        data = Data(sentences(10), sentences(5, 1))
        folder = tmp_path / "run"
        train_task(Entities(), config, data, folder, bilm=bilm)
        train_task(Entities(), config, data, folder, bilm=bilm, resume=True)
        with pytest.raises(ElmoError, match="is of a run with another biLM"):
            train_task(Entities(), config, data, folder, bilm=elmo.load(tmp_path / "other"), resume=True)
        (tmp_path / "vectors.txt").write_text("in 1 0\nsaw 0 2\n")
        with pytest.raises(ElmoError, match="is of a run with another set of word vectors"):
            train_task(Entities(), config, data, folder, bilm=bilm, resume=True)

    def test_the_setting_that_differs_is_named(self, bilm: elmo.Model, tmp_path: Path) -> None:
        config = small(encoder=NONE, train={"epochs": 1})
        trained(Entities(), config, tmp_path, bilm)
        data = Data(sentences(30), sentences(10, 1))
        with pytest.raises(ElmoError, match=r"a run with seed = 0, the config says 1"):
            train_task(Entities(), replace(config, seed=1), data, tmp_path, bilm=bilm, resume=True)


@given(st.lists(st.integers(0, 5000), max_size=200), st.integers(1, 64))
def test_all_are_answered_once_with_others_of_their_length_in_bounded_memory(sizes: list[int], most: int) -> None:
    batches = list(_answered_together(sizes, most))
    places = [place for batch in batches for place in batch]
    assert sorted(places) == list(range(len(sizes)))
    assert [sizes[place] for place in places] == sorted(sizes)
    for batch in batches:
        assert 0 < len(batch) <= most
        assert len(batch) == 1 or len(batch) * max(sizes[place] for place in batch) ** 2 <= _MOST_PAIRS


def test_paragraphs_that_are_all_too_long_to_learn_from_are_an_error(bilm: elmo.Model, tmp_path: Path) -> None:
    long = Text(" ".join(["word"] * 301), tuple(["word"] * 301), tuple(range(0, 5 * 301, 5)))
    question = Question(Text("word ?", ("word", "?"), (0, 5)), long, ("word",), (0, 0))
    config = TaskConfig.of(Questions(), {"encoder": {"elmo": "none", "vectors": "none"}})
    with pytest.raises(ElmoError, match=r"none of the 1 training examples is left .* model\.longest_paragraph"):
        train_task(Questions(), config, Data([question], [question]), tmp_path, bilm=bilm)


@pytest.mark.parametrize(
    ("change", "named"),
    [("train=3", "train is 3: it is a section"), ("model=x", "model is 'x'"), (f"seed={2**63}", "seed is 92233")],
)
def test_a_wrong_setting_is_named(change: str, named: str) -> None:
    with pytest.raises(ElmoError, match=named):
        TaskConfig.of(Entities(), sets=[change])


def test_what_decides_a_run_is_in_its_checkpoint(bilm: elmo.Model, tmp_path: Path) -> None:
    trained(Entities(), small(encoder={"elmo": "input"}, train={"epochs": 1}), tmp_path, bilm)
    about, _ = read_tensors(tmp_path / "last.safetensors")
    assert about["sources"] == {"biLM": bilm.embedder(layers="all").digest()}
    assert json.loads((tmp_path / "run.json").read_text())["examples"] == 30
