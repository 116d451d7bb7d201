"""The two intrinsic tasks: the probe, word senses, and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import elmo
from conftest import run_elmo, small_options, write_model
from elmo.embed import Embedder
from elmo.errors import ElmoError
from elmo.tasks import vectors as vectors_module
from elmo.tasks.probe import Examples, ProbeSettings, most_frequent_tags, probe_tags, train_probe
from elmo.tasks.readers import TaggedSentence
from elmo.tasks.sense_readers import SenseInstance, SenseSentence
from elmo.tasks.senses import FIRST, FREQUENT, disambiguate
from elmo.tasks.vectors import embed_in_text_order, text_order, token_vectors
from test_tasks_readers import KEYS, XML, conllu, write, write_wsd


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, small_options())
    return folder


def drawn(n: int, seed: int) -> Examples:
    """Three tags in 4 dimensions of very different size; one dimension says nothing, one is always the same."""
    rng = np.random.default_rng(seed)
    tags = rng.integers(0, 3, n)
    useful = np.array([[100.0, 0.01], [-100, 0.01], [0, -0.02]])[tags] * rng.uniform(0.5, 1.5, (n, 1))
    vectors = np.column_stack([useful, rng.normal(0, 1, n), np.full(n, 7.0)])
    return Examples(vectors.astype(np.float16), tags)


class TestProbe:
    def test_it_learns_what_a_line_can_tell_apart(self) -> None:
        probe = train_probe(drawn(600, 0), drawn(200, 1), 3, ProbeSettings(batch_size=32, rate=0.02))
        test = drawn(300, 2)
        assert np.mean(probe.answers(test.vectors) == test.tags) > 0.98

    def test_the_same_seed_gives_the_same_bits_and_another_does_not(self) -> None:
        one, same, other = (
            train_probe(drawn(100, 0), drawn(50, 1), 3, ProbeSettings(epochs=2, batch_size=16, seed=seed))
            for seed in (0, 0, 1)
        )
        assert torch.equal(one.weight, same.weight)
        assert torch.equal(one.bias, same.bias)
        assert not torch.equal(one.weight, other.weight)

    def test_the_best_epoch_is_kept_and_training_ends_when_it_gets_no_better(self) -> None:
        settings = ProbeSettings(epochs=200, batch_size=16, patience=2, rate=0.05)
        probe = train_probe(drawn(100, 0), drawn(50, 1), 3, settings)
        assert probe.epochs < 100

    def test_a_tag_that_training_has_not_seen_is_never_right(self) -> None:
        dev = drawn(50, 1)
        dev.tags[:] = -1
        probe = train_probe(drawn(100, 0), dev, 3, ProbeSettings(epochs=1))
        assert not np.any(probe.answers(dev.vectors) == dev.tags)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"epochs": 0}, "epochs is 0: give a whole number"),
            ({"seed": -1}, "seed is -1"),
            ({"rate": 0}, "rate is 0"),
        ],
    )
    def test_a_setting_that_cannot_be_is_named(self, settings: Any, message: str) -> None:
        with pytest.raises(ElmoError, match=message):
            ProbeSettings(**settings)

    def test_no_tokens_are_an_error(self) -> None:
        with pytest.raises(ElmoError, match="a data set is empty"):
            train_probe(drawn(0, 0), drawn(5, 1), 3, ProbeSettings())

    def test_the_word_alone_says_its_most_frequent_tag(self) -> None:
        usual = most_frequent_tags(["a", "a", "a", "b", "c", "d"], ["X", "Y", "Y", "X", "X", "X"])
        assert [usual(word) for word in "abz"] == ["Y", "X", "X"]

    def test_each_layer_gets_a_probe_of_its_own(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        sentences = []
        for _ in range(60):
            words = [str(word) for word in rng.choice(["cat", "dog", "runs", "7"], 5)]
            sentences.append(TaggedSentence(tuple(words), tuple("N" if w in ("cat", "dog") else "O" for w in words)))
        embedder = elmo.load(folder).embedder(layers=[0, 2])
        parts: Any = {"train": sentences[:40], "dev": sentences[40:50], "test": sentences[50:]}
        found = probe_tags(embedder, parts, ProbeSettings(batch_size=8, rate=0.05))
        assert [score.layer for score in found.layers] == [0, 2]
        assert found.layers[0].test == 1  # four words, told apart by their characters
        assert found.baseline_test == 1
        assert found.tags == ("N", "O")
        assert found.tokens == {"train": 200, "dev": 50, "test": 50}


class TestVectors:
    def test_each_sentence_follows_the_one_before_it_in_its_row(self) -> None:
        assert text_order(7, 3) == [0, 3, 5, 1, 4, 6, 2]
        assert text_order(2, 64) == [0, 1]
        assert text_order(0, 64) == []
        assert sorted(text_order(1000, 64)) == list(range(1000))

    def test_a_carried_state_is_that_of_the_sentence_before(self, folder: Path) -> None:
        model = elmo.load(folder)
        sentences = [["a", "b"], ["c"], ["d", "e", "f"], ["g"], ["h", "i"]]
        found = dict(embed_in_text_order(model.embedder(layers=[2], state="carry", batch_size=2), sentences))
        one_by_one = model.embed(sentences[:3], layers=[2], state="carry", batch_size=1)
        for place in range(3):  # the first row's stretch
            np.testing.assert_allclose(found[place], one_by_one[place], atol=1e-5)
        assert sorted(found) == list(range(5))

    def test_tokens_lie_in_the_order_of_the_text_in_memory_and_in_a_file(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = elmo.load(folder)
        sentences = [["a", "b"], ["c"], ["d", "e", "f"]]
        expected = np.concatenate(model.embed(sentences, layers="all"), axis=1)
        for bound, kind in ((2**20, np.ndarray), (0, np.memmap)):
            monkeypatch.setattr(vectors_module, "_IN_MEMORY", bound)
            found = token_vectors(model.embedder(layers="all"), sentences)
            assert type(found) is kind
            np.testing.assert_allclose(found, expected, atol=2e-3, rtol=2e-3)

    def test_a_disk_that_is_too_small_is_an_error(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vectors_module, "_IN_MEMORY", 0)
        monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1))
        with pytest.raises(ElmoError, match="do not fit on the disk"):
            token_vectors(elmo.load(folder).embedder(layers="all"), [["a"]])


class ToyEmbedder(Embedder):
    """One layer, two dimensions: the angle of a word is written in it, in degrees."""

    def __init__(self) -> None:
        self.layers = (5,)
        self.settings: Any = SimpleNamespace(state="zero", batch_size=1)

    @property
    def config(self) -> Any:
        return SimpleNamespace(dim=2)

    def embed_iter(self, sentences: Any) -> Iterator[Any]:
        for sentence in sentences:
            angles = np.deg2rad([float(word) for word in sentence])
            yield np.stack([np.cos(angles), np.sin(angles)], axis=-1)[None].astype(np.float32)


class TestSenses:
    def test_by_hand(self) -> None:
        """Sense 1 of x is at 0 and at 40 degrees, so at 20; sense 2 is at 90."""

        def key(name: str, sense: int) -> str:
            return f"{name}%1:0{sense}:00::"

        def use(angles: str, *senses: int, lemma: str = "x") -> SenseSentence:
            pieces = tuple(angles.split())
            keys = tuple(key(lemma, sense) for sense in senses)
            return SenseSentence(pieces, (SenseInstance("id", (lemma, "n"), 0, len(pieces), keys),))

        train = [use("0", 1), use("40", 1), use("90", 2), use("90", 2), use("90", 2)]
        inventory = {("x", "n"): (key("x", 3), key("x", 1)), ("y", "n"): (key("y", 1),)}
        tests = {
            "near": [use("50", 1), use("60", 2)],  # the border is at 55
            "mean": [use("0 100", 1), use("50 120", 2)],  # of two words: at 50 and at 85
            "else": [use("9", 1, lemma="y"), use("9", 1, lemma="z"), use("10", 1, 2)],
        }
        found = disambiguate(ToyEmbedder(), train, tests, inventory)
        layer = {name: scores["layer 5"] for name, scores in found.sets.items()}
        assert layer["near"].f1 == 1
        assert layer["mean"].f1 == 1
        # y is not in training and gets its first sense; z is nowhere and gets no answer.
        assert (layer["else"].correct, layer["else"].answered, layer["else"].total) == (2, 2, 3)
        assert found.unseen == {"near": 0, "mean": 0, "else": 2}
        assert found.sets["near"][FIRST].correct == 0  # sense 3
        assert found.sets["near"][FREQUENT].correct == 1  # sense 2, three uses against two
        total = found.total()
        assert list(total) == [FIRST, FREQUENT, "layer 5"]
        assert (total["layer 5"].correct, total["layer 5"].total) == (6, 7)

    def test_at_a_wide_angle_a_mean_of_uses_that_differ_is_nearer_than_one_use(self) -> None:
        def use(angle: str, sense: int) -> SenseSentence:
            return SenseSentence((angle,), (SenseInstance("id", ("x", "n"), 0, 1, (f"x%1:0{sense}:00::",)),))

        train = [use("-60", 1), use("60", 1), use("90", 2)]  # a mean of length 1/2 at 0 degrees, and a use at 90
        found = disambiguate(ToyEmbedder(), train, {"t": [use("46", 1), use("47", 2)]}, {})
        assert found.sets["t"]["layer 5"].f1 == 1

    def test_of_senses_as_frequent_as_each_other_the_inventorys_first_is_taken(self) -> None:
        one = SenseSentence(("0",), (SenseInstance("i", ("x", "n"), 0, 1, ("x%1:01:00::", "x%1:02:00::")),))
        test = {"t": [SenseSentence(("0",), (SenseInstance("i", ("x", "n"), 0, 1, ("x%1:02:00::",)),))]}
        found = disambiguate(ToyEmbedder(), [one], test, {("x", "n"): ("x%1:02:00::", "x%1:01:00::")})
        assert found.sets["t"][FREQUENT].f1 == 1


class TestCommand:
    @pytest.fixture
    def files(self, tmp_path: Path) -> dict[str, str]:
        rows = conllu("1 cats NOUN NNS", "2 run VERB VBP") + "\n"
        semcor = {"id": "s", "tokens": ["old_age", "good"], "senses": [["old_age%1:28:00::"], ["good%3:00:02::"]]}
        inventory = "old_age\tn\told_age%1:28:00::\ngood\ta\tgood%3:00:01::\n"
        return {
            "conllu": write(tmp_path / "a.conllu", rows * 4),
            "semcor": write(tmp_path / "s.jsonl", json.dumps(semcor)),
            "inventory": write(tmp_path / "i.tsv", inventory),
            "wsd": write_wsd(tmp_path / "toy", XML, KEYS),
        }

    def test_tags_as_a_table_and_for_programs(self, folder: Path, files: dict[str, str]) -> None:
        file = files["conllu"]
        command = ["task", "probe", "--train", file, "--dev", file, "--test", file, "--model", folder, "--epochs", "2"]
        result = run_elmo(*command, "--layers", "0,2", "-q")
        assert result.returncode == 0, result.stderr
        assert result.stderr == b""
        assert [line.split()[:2] for line in result.stdout.decode().splitlines()[1:4]] == [
            ["word", "alone"],
            ["layer", "0"],
            ["layer", "2"],
        ]
        found = json.loads(run_elmo(*command, "--json", "--tags", "xpos").stdout)
        assert found["tags"] == ["NNS", "VBP"]
        assert [score["layer"] for score in found["layers"]] == [0, 1, 2]

    def test_senses_as_a_table_and_for_programs(self, folder: Path, files: dict[str, str], tmp_path: Path) -> None:
        command = ["task", "senses", "--train", files["semcor"], "--inventory", files["inventory"], "--model", folder]
        result = run_elmo(*command, "--test", files["wsd"], "-q")
        assert result.returncode == 0, result.stderr
        lines = [line.split() for line in result.stdout.decode().splitlines()]
        assert lines[0] == ["F1", "toy", "all"]
        assert lines[1] == ["first", "sense", "100.00", "100.00"]
        assert lines[2] == ["most", "frequent", "sense", "50.00", "50.00"]
        assert lines[3] == ["layer", "0", "50.00", "50.00"]
        found = json.loads(run_elmo(*command, "--test", tmp_path, "--json").stdout)
        assert found["sets"]["all"]["layer 2"] == {"f1": 0.5, "precision": 0.5, "recall": 0.5, "instances": 2}

    def test_test_sets_of_one_name_are_refused(self, folder: Path, files: dict[str, str], tmp_path: Path) -> None:
        command = ["task", "senses", "--train", files["semcor"], "--inventory", files["inventory"], "--model", folder]
        other = write_wsd(tmp_path / "other", XML, KEYS)
        result = run_elmo(*command, "--test", files["wsd"], "--test", other, "-q")
        assert result.returncode == 2
        assert f"{other}: found a second test set of the name 'toy', behind {files['wsd']}" in result.stderr.decode()
        reserved = write_wsd(tmp_path / "another", XML, KEYS, name="all")
        result = run_elmo(*command, "--test", reserved, "-q")
        assert result.returncode == 2
        assert f"{reserved}: found a test set of the name 'all', which stands for another" in result.stderr.decode()

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (["--layers", "top"], "--layers is 'top': give all, or numbers"),
            (["--layers", "3"], "from 0 to 2"),
            (["--state", "warm"], "no warm start state"),
            (["--state", "hot"], "state is 'hot'"),
            (["--tags", "pos"], "tags is 'pos'"),
            (["--test", "nothing.conllu"], "cannot read nothing.conllu"),
            (["--epochs", "0"], "epochs is 0"),
        ],
    )
    def test_a_mistake_is_a_line_and_exit_code_2(
        self, folder: Path, files: dict[str, str], more: list[str], message: str
    ) -> None:
        file = files["conllu"]
        command = ["task", "probe", "--train", file, "--dev", file, "--test", file, "--model", folder, *more]
        result = run_elmo(*command, "-q")
        assert result.returncode == 2
        assert message in result.stderr.decode()
        assert result.stdout == b""
