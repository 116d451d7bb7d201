"""The language model's answers against an independent one in float64, against training's validation, against itself."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import elmo
import lm_reference64 as reference
from conftest import run_elmo, small_options
from elmo.config import ModelConfig
from elmo.engine import EngineName
from elmo.errors import ElmoError
from elmo.lm import scores
from elmo.lm.distributed import Ranks
from elmo.lm.loop import train
from elmo.lm.settings import TrainConfig
from elmo.lm.softmax import AdaptiveHead, Head, SoftmaxHead
from elmo.lm.train import Training
from elmo.model import BiLM, State
from elmo.vocab import SPECIAL_WORDS, Vocabulary
from lm_corpus import MemoryCorpus, sentences
from reference64 import char_row

VOCAB = Vocabulary([*SPECIAL_WORDS, "the", "cat", "sat", "on", "mat", "."])
TEXT = [["the", "cat", "sat", "."], ["the", "zebra"], [], ["cat"], ["on", "the", "mat", ".", "the", "ü"]]


def drawn_model(options: dict[str, Any] | None = None, head: Head | None = None, **parts: Any) -> elmo.Model:
    """A small model with every weight far from zero."""
    config = ModelConfig.from_options(options or small_options())
    bilm, head = BiLM(config), head or SoftmaxHead(len(VOCAB), config.lstm.projection_dim)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for part in (bilm, head):
            for name, weight in part.named_parameters():
                weight.normal_(std=0.4, generator=generator)
                if name == "encoder.characters.weight":
                    weight[0] = 0
    return elmo.Model.of(bilm.requires_grad_(False), head=head.requires_grad_(False), vocab=VOCAB, **parts)


@pytest.fixture(scope="module")
def model() -> elmo.Model:
    return drawn_model()


def reference_scores(
    model: elmo.Model, options: dict[str, Any], text: list[list[str]], rows: int | None
) -> Iterator[tuple[list[float], list[float]]]:
    """Each sentence's `ln p`, forward and backward, in float64: `rows` sentences side by side hand on their state."""
    assert model.head is not None
    bilm, head = (reference.leaves(dict(part.named_parameters())) for part in (model.bilm, model.head))
    nothing = State.zeros(model.config, 1, torch.empty(0, dtype=torch.float64))
    states = [nothing] * (rows or 1)
    words = list(VOCAB)
    for number, sentence in enumerate(text):
        row = number % len(states)
        start = nothing if rows is None else states[row]
        read = [["<S>", *sentence], ["</S>", *sentence[::-1]]]
        predicted = [[*sentence, "</S>"], [*sentence[::-1], "<S>"]]
        types = list(dict.fromkeys(["<S>", "</S>", *sentence]))
        ids = [[i + 1 for i in char_row(word, 50)] for word in types]
        inputs = [[[types.index(word) for word in stream]] for stream in read]
        tops, m, c = reference.top_layer(bilm, options, ids, inputs, start.m, start.c, None)
        both = []
        for direction, targets in enumerate(predicted):
            numbers = [words.index(word if word in words else "<UNK>") for word in targets]
            both.append(
                [
                    -float(reference.full_loss(head["weight"], head["bias"], tops[direction, 0, t], target).detach())
                    for t, target in enumerate(numbers)
                ]
            )
        if sentence:
            states[row] = State(m, c)
        forward, backward = both
        yield forward, [*backward[:-1][::-1], backward[-1]]  # in the order of the words, the boundary last


class TestScores:
    @pytest.mark.parametrize("engine", ["auto", "reference"])
    @pytest.mark.parametrize("rows", [None, 1, 2])
    @pytest.mark.parametrize(
        "lstm",
        [{}, {"use_skip_connections": False, "cell_clip": None, "proj_clip": None}, {"n_layers": 1}],
        ids=["plain", "no skip, no clips", "one layer"],
    )
    def test_equal_a_float64_reference(self, lstm: dict[str, Any], rows: int | None, engine: EngineName) -> None:
        options = small_options(**lstm)
        model = drawn_model(options)
        found = (
            model.score(TEXT, engine=engine)
            if rows is None
            else model.score(TEXT, state="carry", batch_size=rows, engine=engine)
        )
        assert len(found) == len(TEXT)
        for one, sentence, (forward, backward) in zip(
            found, TEXT, reference_scores(model, options, TEXT, rows), strict=True
        ):
            assert list(one.tokens) == sentence
            np.testing.assert_allclose(one.forward, forward, atol=1e-5)
            np.testing.assert_allclose(one.backward, backward, atol=1e-5)

    @given(
        text=st.lists(st.lists(st.sampled_from(["the", "cat", "sat", "zebra", "<UNK>"]), max_size=4), max_size=5),
        rows=st.one_of(st.none(), st.integers(1, 4)),
        batch_tokens=st.sampled_from([1, 5, 100]),
    )
    @settings(max_examples=15)
    def test_equal_it_for_any_text_however_it_is_cut(
        self, text: list[list[str]], rows: int | None, batch_tokens: int
    ) -> None:
        options, model = small_options(), drawn_model()
        found = model.score(
            text, state="zero" if rows is None else "carry", batch_size=rows or 1, batch_tokens=batch_tokens
        )
        for one, (forward, backward) in zip(found, reference_scores(model, options, text, rows), strict=True):
            np.testing.assert_allclose(one.forward, forward, atol=1e-5)
            np.testing.assert_allclose(one.backward, backward, atol=1e-5)

    def test_totals_are_sums_and_the_sentence_s_perplexity_is_of_both_directions(self, model: elmo.Model) -> None:
        (one,) = model.score(["the cat sat"])
        assert one.forward_total == pytest.approx(sum(one.forward.tolist()))
        assert one.backward_total == pytest.approx(sum(one.backward.tolist()))
        assert one.total == pytest.approx((one.forward_total + one.backward_total) / 2)
        assert one.perplexity == pytest.approx(math.exp(-one.total / 4))

    def test_what_a_direction_has_not_read_does_not_change_what_it_says(self, model: elmo.Model) -> None:
        one, other = model.score(["the cat sat on", "the cat mat on"])
        np.testing.assert_allclose(one.forward[:2], other.forward[:2], atol=1e-6)
        np.testing.assert_allclose(one.backward[3], other.backward[3], atol=1e-6)
        assert np.all(np.abs(one.forward[2:] - other.forward[2:]) > 1e-4)
        assert np.all(np.abs(one.backward[[0, 1, 2, 4]] - other.backward[[0, 1, 2, 4]]) > 1e-4)

    def test_unknown_words_are_marked_and_told_apart_by_their_neighbours_alone(self, model: elmo.Model) -> None:
        one, other = model.score(["the zebra sat", "the gnu sat"])
        assert one.unknown.tolist() == [False, True, False]
        assert one.forward[1] == pytest.approx(other.forward[1], abs=1e-6)  # both are <UNK> as a target
        assert one.forward[2] != pytest.approx(other.forward[2], abs=1e-4)  # as an input they have their characters

    def test_the_probabilities_of_all_next_words_sum_to_one(self, model: elmo.Model) -> None:
        found = model.score([["the", word, "cat"] for word in VOCAB])
        for direction in ("forward", "backward"):
            assert sum(math.exp(getattr(one, direction)[1]) for one in found) == pytest.approx(1, abs=1e-5)

    def test_a_model_that_reads_words_scores_too(self) -> None:
        options = {"lstm": small_options()["lstm"], "n_tokens_vocab": len(VOCAB)}
        found = drawn_model(options).score([["the", word] for word in VOCAB])
        assert sum(math.exp(one.forward[1]) for one in found) == pytest.approx(1, abs=1e-5)

    def test_a_stored_start_state_is_used_on_request(self, model: elmo.Model) -> None:
        warmed = model.warmed(["the cat sat on the mat ."])
        zero, warm = warmed.score(["the cat"])[0], warmed.score(["the cat"], state="warm")[0]
        assert np.all(np.abs(zero.forward - warm.forward) > 1e-5)
        with pytest.raises(ElmoError, match="no warm start state"):
            model.score(["the cat"], state="warm")

    def test_a_stream_is_answered_before_it_ends(self, model: elmo.Model) -> None:
        read = itertools.count()
        endless = (["the", "cat"] for _ in read)
        found = list(itertools.islice(model.score_iter(endless, batch_tokens=64), 100))
        assert len(found) == 100
        assert next(read) < 1000

    def test_a_head_computed_in_pieces_gives_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = drawn_model(head=AdaptiveHead(len(VOCAB), 5, [5]))
        whole = model.score(TEXT)
        monkeypatch.setattr(scores, "_LOGITS_AT_ONCE", 2 * len(VOCAB))
        for one, other in zip(model.score(TEXT), whole, strict=True):
            np.testing.assert_allclose(one.forward, other.forward, atol=1e-6)

    def test_weights_that_have_changed_since_are_seen(self) -> None:
        model = drawn_model()
        before = model.score(["the cat"])[0].forward
        with torch.no_grad():
            model.bilm.get_parameter("forwards.0.bias").add_(0.5)
        assert not np.allclose(model.score(["the cat"])[0].forward, before, atol=1e-4)


def trained(**changes: Any) -> Training:
    """A little training on a small grammar, in one row."""
    raw: dict[str, Any] = {
        "model": small_options(),
        "data": {"rows": 1, "unroll_steps": 7},
        "softmax": {"kind": "full"},
        "train": {"steps": 60, "validate_every": 60, "precision": "fp32", "dropout": 0.0},
        "optimizer": {"kind": "adamw", "rate": 0.02},
    } | changes
    corpus = MemoryCorpus([sentences(100)], [*sentences(30, 2), ["the", "zebra", "sees", "."]])
    run = Training(TrainConfig.from_dict(raw), corpus, Ranks())
    for _ in train(run):
        pass
    return run


class TestPerplexity:
    @pytest.mark.parametrize(
        "softmax", [{"kind": "full"}, {"kind": "adaptive", "cutoffs": [8]}], ids=["full", "adaptive"]
    )
    def test_of_one_stream_is_that_of_training_s_validation(self, softmax: dict[str, Any]) -> None:
        run = trained(softmax=softmax)
        model = elmo.Model.of(run.lm.bilm, head=run.lm.head, vocab=run.corpus.vocab)
        text = [*sentences(30, 2), ["the", "zebra", "sees", "."]]
        expected, found = run.validate(), model.perplexity(text)
        assert found.predictions == expected.positions
        assert found.forward_loss == pytest.approx(expected.forward, abs=1e-5)
        assert found.backward_loss == pytest.approx(expected.backward, abs=1e-5)
        assert found.perplexity == pytest.approx(expected.perplexity, rel=1e-5)
        assert found.unknown == 1
        alone = model.perplexity(text, state="zero")
        assert abs(alone.forward_loss - found.forward_loss) > 1e-3  # so that the state does matter here

    def test_is_made_of_the_scores(self, model: elmo.Model) -> None:
        text = [sentence for sentence in TEXT if sentence]
        found, each = model.perplexity(text, state="zero"), model.score(text)
        assert (found.sentences, found.tokens, found.unknown) == (4, 13, 2)
        assert found.predictions == 17
        assert found.unknown_rate == pytest.approx(2 / 13)
        assert found.forward_loss == pytest.approx(-sum(one.forward_total for one in each) / 17)
        assert found.backward_loss == pytest.approx(-sum(one.backward_total for one in each) / 17)

    def test_its_two_averages(self) -> None:
        found = scores.Perplexity(sentences=1, tokens=1, unknown=0, forward_loss=math.log(2), backward_loss=math.log(8))
        assert found.forward == pytest.approx(2)
        assert found.backward == pytest.approx(8)
        assert found.perplexity == pytest.approx(4)
        assert found.mean == pytest.approx(5)

    def test_nothing_and_boundaries_in_the_text_are_left_out(self, model: elmo.Model) -> None:
        plain = model.perplexity(["the cat", "sat on"])
        assert model.perplexity(["", "<S> the cat </S>", "", "<S>", "sat on"]) == plain

    def test_more_rows_are_other_streams(self, model: elmo.Model) -> None:
        text = [sentence for sentence in TEXT if sentence]
        one, two = model.perplexity(text), model.perplexity(text, batch_size=2)
        evens, odds = model.perplexity(text[::2]), model.perplexity(text[1::2])
        together = (evens.forward_loss * evens.predictions + odds.forward_loss * odds.predictions) / two.predictions
        assert two.forward_loss == pytest.approx(together, abs=1e-6)
        assert abs(two.forward_loss - one.forward_loss) > 1e-4

    def test_a_text_without_words_has_none(self, model: elmo.Model) -> None:
        with pytest.raises(ElmoError, match="no word in it"):
            model.perplexity(["", "<S>"])


class TestSubstitutes:
    TOKENS = ("the", "cat", "sat", ".")

    @pytest.mark.parametrize("position", [0, 1, 3])
    @pytest.mark.parametrize("special_words", [False, True])
    def test_are_what_scoring_every_word_in_the_place_gives(
        self, model: elmo.Model, position: int, special_words: bool
    ) -> None:
        words = [word for word in VOCAB if special_words or word not in SPECIAL_WORDS]
        tokens = self.TOKENS
        tried = model.score([[*tokens[:position], word, *tokens[position + 1 :]] for word in words])
        logs = {word: (one.forward[position], one.backward[position]) for word, one in zip(words, tried, strict=True)}
        total = sum(math.exp(sum(both)) for both in logs.values())
        found = model.substitutes(tokens, position, 100, special_words=special_words, divide_by_unigram=False)
        assert sorted(one.word for one in found) == sorted(words)
        assert sum(one.probability for one in found) == pytest.approx(1)
        assert [one.probability for one in found] == sorted((one.probability for one in found), reverse=True)
        for one in found:
            assert (one.forward, one.backward) == pytest.approx(logs[one.word], abs=1e-5)
            assert one.probability == pytest.approx(math.exp(sum(logs[one.word])) / total, rel=1e-4)

    def test_k_are_the_best_k(self, model: elmo.Model) -> None:
        assert model.substitutes("the cat sat", 1, 3) == model.substitutes("the cat sat", 1, 100)[:3]

    def test_what_stands_there_is_of_no_account(self, model: elmo.Model) -> None:
        one, other = model.substitutes("the cat sat", 1), model.substitutes("the zebra sat", 1)
        assert [sub.word for sub in one] == [sub.word for sub in other]
        assert one[0].probability == pytest.approx(other[0].probability, abs=1e-6)

    def test_the_unigram_of_a_softmax_is_that_of_its_biases(self, model: elmo.Model) -> None:
        assert isinstance(model.head, SoftmaxHead)
        unigram = torch.softmax(model.head.bias.double(), dim=0)
        plain = model.substitutes("the cat sat", 1, 100, divide_by_unigram=False)
        ratios = {one.word: one.probability / float(unigram[VOCAB.ids([one.word])[0]]) for one in plain}
        found = model.substitutes("the cat sat", 1, 100)
        for one in found:
            assert one.probability == pytest.approx(ratios[one.word] / sum(ratios.values()), rel=1e-5)

    def test_a_trained_model_puts_nouns_where_nouns_stand(self) -> None:
        run = trained(train={"steps": 300, "validate_every": 300, "precision": "fp32", "dropout": 0.0})
        model = elmo.Model.of(run.lm.bilm, head=run.lm.head, vocab=run.corpus.vocab)
        found = model.substitutes("the cat sees the dog .", 1, 5)
        assert {one.word for one in found} == {"cat", "dog", "bird", "child", "teacher"}

    @pytest.mark.parametrize(
        ("tokens", "position", "k", "message"),
        [
            ("the cat", 2, 1, "position is 2: give a whole number from 0 to 1"),
            ("the cat", -1, 1, "position is -1"),
            ("the cat", 1.0, 1, "position is 1.0"),
            ("", 0, 1, "the sentence is empty"),
            ("the cat", 0, 0, "k is 0: give a whole number, 1 or more"),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, model: elmo.Model, tokens: str, position: Any, k: int, message: str
    ) -> None:
        with pytest.raises(ElmoError, match=message):
            model.substitutes(tokens, position, k)


def test_a_model_without_its_head_says_how_to_get_one(model_folder: Path) -> None:
    headless = elmo.load(model_folder)
    for ask in (
        lambda: headless.score(["a"]),
        lambda: headless.score_iter(["a"]),
        lambda: headless.perplexity(["a"]),
        lambda: headless.substitutes("a", 0),
    ):
        with pytest.raises(ElmoError, match=r"no language model head.*elmo finetune M TEXT -o OUT"):
            ask()


def test_a_setting_that_would_have_no_effect_is_refused(model: elmo.Model) -> None:
    wrong: Any = {"pool": "mean"}
    with pytest.raises(ElmoError, match="unknown setting 'pool': known are batch_size, batch_tokens"):
        model.score(["the"], **wrong)
    with pytest.raises(ElmoError, match="state is 'none'"):
        model.score(["the"], **{"state": "none"})  # type: ignore[arg-type]  # that is the test
    with pytest.raises(ElmoError, match="a list of sentences is expected"):
        model.score("the cat")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lm") / "model"
    elmo.save(drawn_model(), folder)
    return folder


class TestCommands:
    @pytest.fixture
    def text(self, tmp_path: Path) -> Path:
        path = tmp_path / "in.txt"
        path.write_text("the cat sat .\n\nthe zebra ü\n", encoding="utf-8")
        return path

    @pytest.mark.parametrize("state", ["carry", "zero"])
    def test_perplexity(self, folder: Path, text: Path, model: elmo.Model, state: Any) -> None:
        shown = run_elmo("perplexity", folder, text, "--state", state)
        assert shown.returncode == 0, shown.stderr
        expected = model.perplexity(["the cat sat .", "the zebra ü"], state=state)
        lines = shown.stdout.decode().splitlines()
        assert [line.split()[0] for line in lines[:4]] == ["perplexity", "mean", "forward", "backward"]
        numbers = [float(line.split()[1]) for line in lines[:4]]
        wanted = [expected.perplexity, expected.mean, expected.forward, expected.backward]
        assert numbers == pytest.approx(wanted, abs=1e-3)
        assert f"9 predictions each way: 7 words and the ends of 2 sentences; state {state}" in lines[4]
        assert "28.57 % of the words are unknown" in lines[4]

    def test_perplexity_for_programs_from_standard_input(self, folder: Path, model: elmo.Model) -> None:
        result = run_elmo("perplexity", folder, "-", "--json", stdin=b"the cat\n")
        found, expected = json.loads(result.stdout), model.perplexity(["the cat"])
        assert found["perplexity"] == pytest.approx(expected.perplexity, rel=1e-5)
        assert found["forward_loss"] == pytest.approx(expected.forward_loss, rel=1e-5)
        assert found["unknown_rate"] == 0

    def test_score_gives_a_line_for_each_line(self, folder: Path, text: Path, model: elmo.Model) -> None:
        result = run_elmo("score", folder, text)
        assert result.returncode == 0, result.stderr
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        expected = model.score(["the cat sat .", "", "the zebra ü"])
        assert [row["index"] for row in rows] == [0, 1, 2]
        for row, one in zip(rows, expected, strict=True):
            assert row["tokens"] == list(one.tokens)
            assert row["unknown"] == one.unknown.tolist()
            np.testing.assert_allclose(row["forward"], one.forward, atol=1e-5)
            np.testing.assert_allclose(row["backward"], one.backward, atol=1e-5)
            assert row["forward_total"] == pytest.approx(one.forward_total, abs=1e-4)

    def test_score_into_a_table(self, folder: Path, text: Path, tmp_path: Path, model: elmo.Model) -> None:
        out = tmp_path / "scores.tsv"
        result = run_elmo("score", folder, text, "-o", out, "--format", "tsv", "--state", "carry")
        assert result.returncode == 0, result.stderr
        rows = [line.split("\t") for line in out.read_text(encoding="utf-8").splitlines()]
        expected = model.score(["the cat sat .", "", "the zebra ü"], state="carry")
        assert [row[3] for row in rows] == ["the cat sat .", "", "the zebra ü"]
        for row, one in zip(rows, expected, strict=True):
            wanted = (one.forward_total, one.backward_total, one.perplexity)
            assert tuple(map(float, row[:3])) == pytest.approx(wanted, rel=1e-4)

    def test_a_link_stays_one_and_what_it_points_to_is_written(self, folder: Path, text: Path, tmp_path: Path) -> None:
        (tmp_path / "old.tsv").write_text("old")
        (tmp_path / "link.tsv").symlink_to("old.tsv")
        result = run_elmo("score", folder, text, "-o", tmp_path / "link.tsv", "--format", "tsv", "--overwrite")
        assert result.returncode == 0, result.stderr
        assert (tmp_path / "link.tsv").is_symlink()
        assert len((tmp_path / "old.tsv").read_text(encoding="utf-8").splitlines()) == 3

    def test_substitutes_by_place_and_by_word(self, folder: Path, model: elmo.Model) -> None:
        by_place = run_elmo("substitutes", folder, "the cat sat", "--position", 1, "-k", 3, "--json")
        by_word = run_elmo("substitutes", folder, "the cat sat", "--word", "cat", "-k", 3)
        assert by_place.returncode == by_word.returncode == 0, by_place.stderr + by_word.stderr
        expected = model.substitutes("the cat sat", 1, 3)
        found = json.loads(by_place.stdout)
        assert [one["word"] for one in found] == [one.word for one in expected]
        assert found[0]["probability"] == pytest.approx(expected[0].probability, rel=1e-4)
        words = [line.split()[0] for line in by_word.stdout.decode().splitlines()[1:]]
        assert words == [one.word for one in expected]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["perplexity", "M", "no.txt"], "cannot read no.txt"),
            (["perplexity", "M", "TEXT", "--state", "no"], "state is 'no'"),
            (["perplexity", "M", "TEXT", "--batch-size", "0"], "batch_size is 0"),
            (["perplexity", "M", "-"], "no word in it"),
            (["score", "M", "TEXT", "--format", "csv"], "--format is 'csv': give jsonl or tsv"),
            (["score", "M", "TEXT", "-o", "TEXT"], "exists: --overwrite replaces it"),
            (["score", "M", "TEXT", "-o", "/dev/null", "--overwrite"], "/dev/null is no plain file"),
            (["score", "M", "BYTES", "-o", "out.jsonl"], "line 2: not UTF-8"),
            (["substitutes", "M", "a b", "--position", "2"], "from 0 to 1"),
            (["substitutes", "M", "a b"], "give --position N (from 0) or --word W"),
            (["substitutes", "M", "a b", "--position", "1", "--word", "a"], "give --position N (from 0) or --word W"),
            (["substitutes", "M", "a b a", "--word", "a"], "--word 'a' is there at 0, 2: give --position N"),
            (["substitutes", "M", "a b", "--word", "c"], "is not in the sentence"),
        ],
    )
    def test_mistakes_are_one_line_and_leave_nothing(
        self, folder: Path, text: Path, tmp_path: Path, arguments: list[str], message: str
    ) -> None:
        (tmp_path / "bytes.txt").write_bytes(b"the cat\n\xff\n")
        names = {"M": str(folder), "TEXT": str(text), "BYTES": str(tmp_path / "bytes.txt")}
        before = sorted(tmp_path.iterdir())
        result = run_elmo(*(names.get(argument, argument) for argument in arguments), cwd=tmp_path)
        assert result.returncode == 2
        assert result.stdout == b""
        assert result.stderr.decode().startswith("error: ")
        assert message in result.stderr.decode()
        assert b"Traceback" not in result.stderr
        assert sorted(tmp_path.iterdir()) == before

    def test_a_model_without_its_head(self, model_folder: Path, text: Path) -> None:
        for command in (["perplexity", text], ["score", text], ["substitutes", "a b", "--position", "0"]):
            result = run_elmo(command[0], model_folder, *command[1:])
            assert result.returncode == 2
            assert b"this model has no language model head" in result.stderr
