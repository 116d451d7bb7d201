"""Task models: words with ELMo beside them, training by the one loop, models that are stored and answer again."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

import elmo
import manylangs64
from conftest import small_options, write_model
from elmo.errors import ElmoError
from elmo.lm.checkpoint import read_tensors
from elmo.lm.loop import run_training
from elmo.tasks import files as task_files
from elmo.tasks import saved
from elmo.tasks import words as words_module
from elmo.tasks.all import TASKS
from elmo.tasks.encoder import EncoderSettings, Place, TokenEncoder
from elmo.tasks.layers import CRF, IMPOSSIBLE, BiLSTM, masked_softmax, viterbi
from elmo.tasks.metrics import span_scores, spans_of
from elmo.tasks.readers import TaggedSentence, read_columns
from elmo.tasks.run import Data, new_model, read_result, train_task
from elmo.tasks.saved import Learned, load_task, read_learned, read_words, save_task, write_words
from elmo.tasks.settings import TaskConfig
from elmo.tasks.tagging import Entities, allowed_bio
from elmo.tasks.task import Task
from elmo.tasks.training import TaskTraining
from elmo.tasks.vectors import FrozenLayers
from elmo.tasks.words import WordVectors

PLACES: list[Place] = ["none", "input", "output", "both"]
CPU = torch.device("cpu")
TAGS = st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"])


@pytest.fixture(scope="module")
def bilm(tmp_path_factory: pytest.TempPathFactory) -> elmo.Model:
    folder = tmp_path_factory.mktemp("bilm")
    write_model(folder, small_options())
    return elmo.load(folder)


def sentences(n: int, seed: int = 0) -> list[TaggedSentence]:
    """Names, in capitals, are persons, or places behind "in"."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        tokens, tags = [], []
        for _ in range(rng.integers(1, 5)):
            name, place = f"N{rng.integers(9)}", bool(rng.integers(2))
            tokens += ["in", name] if place else ["saw", name, "Jr"]
            tags += ["O", "B-LOC"] if place else ["O", "B-PER", "I-PER"]
        found.append(TaggedSentence(tuple(tokens), tuple(tags)))
    return found


def small(**changes: Any) -> TaskConfig:
    """Settings of a model that learns in a second."""
    values: dict[str, Any] = {
        "encoder": {"vectors": "none", "word_dim": 12, "characters": 8, "dropout": 0.1},
        "model": {"hidden": 16, "layers": 1, "dropout": 0.1},
        "optimizer": {"rate": 0.02},
        "train": {"epochs": 4, "batch_size": 8},
    }
    for section, more in changes.items():
        values[section] = {**values.get(section, {}), **more} if isinstance(more, dict) else more
    return TaskConfig.of(Entities(), values)


class TestEncoder:
    def test_elmo_stands_beside_the_words_where_it_is_asked_for(self, bilm: elmo.Model) -> None:
        tokens = [("in", "N1"), ("saw", "N2", "Jr")]
        frozen = FrozenLayers(bilm.embedder(layers="all"), tokens)
        widths = {}
        for place in PLACES:
            settings = EncoderSettings(elmo=place, word_dim=7, characters=3)
            encoder = TokenEncoder(settings, ["in"], elmo=frozen.shape if settings.places else None)
            encoded = encoder(encoder.collate(tokens, frozen))
            widths[place] = (encoded.inputs.shape[-1], None if encoded.output is None else encoded.output.shape[-1])
            assert encoded.inputs.shape[-1] == encoder.input_dim
        assert widths == {"none": (10, None), "input": (20, None), "output": (10, 10), "both": (20, 10)}

    def test_a_mix_begins_as_the_mean_of_the_frozen_layers(self, bilm: elmo.Model) -> None:
        tokens = [("in", "N1"), ("saw", "N2", "Jr")]
        frozen = FrozenLayers(bilm.embedder(layers="all"), tokens)
        encoder = TokenEncoder(EncoderSettings(elmo="output"), ["in"], elmo=frozen.shape).eval()
        found = encoder(encoder.collate(tokens, frozen)).output
        for row, vectors in zip(found, bilm.embed(tokens, layers="average"), strict=True):
            np.testing.assert_allclose(row[: len(vectors)].detach(), vectors, atol=5e-3)
            assert (row[len(vectors) :] == 0).all()

    def test_layers_in_a_folder_are_computed_by_one_process_for_all(
        self, bilm: elmo.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokens = [("in", "N1"), ("saw", "N2", "Jr")]
        alone = FrozenLayers(bilm.embedder(layers="all"), tokens)
        first = FrozenLayers(bilm.embedder(layers="all"), tokens, folder=tmp_path)
        monkeypatch.setattr("elmo.tasks.vectors.embed_in_text_order", lambda *_: pytest.fail("computed again"))
        second = FrozenLayers(bilm.embedder(layers="all"), tokens, folder=tmp_path)
        for kept in (first, second):
            assert torch.equal(kept(tokens), alone(tokens))
            assert torch.equal(kept.only([1])(tokens), alone(tokens)[:, :, 1:2])
        assert len(list(tmp_path.glob("*.f16"))) == 1
        with pytest.raises(pytest.fail.Exception):
            FrozenLayers(bilm.embedder(layers="all"), tokens[:1], folder=tmp_path)

    def test_what_a_process_left_that_was_killed_goes(self, bilm: elmo.Model, tmp_path: Path) -> None:
        FrozenLayers(bilm.embedder(layers="all"), [("in", "N1")], folder=tmp_path)
        (whole,) = tmp_path.glob("*.f16")
        torn, others = tmp_path / f".{whole.name}.new-1", tmp_path / ".layers-0.f16.new-1"
        whole.rename(torn)
        others.touch()  # of other sentences, which another process may be at
        FrozenLayers(bilm.embedder(layers="all"), [("in", "N1")], folder=tmp_path)
        assert [path.exists() for path in (whole, torn, others)] == [True, False, True]

    @pytest.mark.parametrize("layers", ["all", "top", "1"])
    def test_a_biLM_that_is_trained_begins_as_the_frozen_one(self, bilm: elmo.Model, layers: str) -> None:  # noqa: N802 - its name
        tokens = [("in", "N1"), ("saw", "N2", "Jr"), ("x",)]
        settings = EncoderSettings(elmo="input", layers=layers, train_bilm=True)
        chosen = settings.chosen(bilm.config.n_layers)
        frozen = FrozenLayers(bilm.embedder(layers="all"), tokens).only(chosen)
        trained = TokenEncoder(settings, ["in"], elmo=frozen.shape, bilm=bilm.bilm).eval()
        other = TokenEncoder(replace(settings, train_bilm=False), ["in"], elmo=frozen.shape).eval()
        other.load_state_dict({n: w for n, w in trained.state_dict().items() if not n.startswith("bilm.")})
        one, two = trained(trained.collate(tokens, None)).inputs, other(other.collate(tokens, frozen)).inputs
        torch.testing.assert_close(one, two, atol=5e-3, rtol=0)

    def test_a_biLM_that_reads_other_characters_is_not_trained(self, tmp_path: Path) -> None:  # noqa: N802 - its name
        manylangs64.write(tmp_path / "m")
        model = elmo.load(tmp_path / "m")
        with pytest.raises(ElmoError, match=r"an alphabet of its own .* cannot be trained in a task model"):
            TokenEncoder(EncoderSettings(train_bilm=True), ["in"], elmo=(3, model.config.dim), bilm=model.bilm)

    def test_a_word_is_known_in_lower_case_too_and_static_vectors_stay(self) -> None:
        vectors = WordVectors(("cat", "dog"), np.array([[1.0, 0.0], [0.0, 2.0]], np.float32))
        encoder = TokenEncoder(EncoderSettings(elmo="none", characters=0), vectors).eval()
        batch = encoder.collate([("Cat", "cat", "fish")], None)
        assert batch.words.tolist() == [[2, 2, 1]]
        assert not any(weight.requires_grad for weight in encoder.parameters())

    def test_the_penalty_pulls_the_weights_of_the_layers_together(self) -> None:
        encoder = TokenEncoder(EncoderSettings(elmo="both", penalty=0.5), ["a"], elmo=(2, 4))
        mix: Any = encoder.mixes["input"]
        mix.weights.data = torch.tensor([1.0, -2.0])
        assert float(encoder.penalty().detach()) == pytest.approx(0.5 * 5)

    @pytest.mark.parametrize(
        ("settings", "named"),
        [({"elmo": "inside"}, "encoder.elmo"), ({"layers": "3rd"}, "encoder.layers"), ({"dropout": 1.0}, "dropout")],
    )
    def test_a_wrong_setting_is_named(self, settings: dict[str, Any], named: str) -> None:
        with pytest.raises(ElmoError, match=named):
            EncoderSettings(**settings)


class TestLayers:
    def test_a_chain_sums_to_one_over_all_sequences(self) -> None:
        torch.manual_seed(0)
        crf, scores, mask = CRF(3), torch.randn(1, 4, 3), torch.tensor([[True, True, True, False]])
        tags = torch.cartesian_prod(*[torch.arange(3)] * 3)
        tags = torch.cat([tags, torch.zeros(len(tags), 1, dtype=torch.long)], dim=1)
        losses = crf.loss(scores.expand(len(tags), -1, -1), tags, mask.expand(len(tags), -1))
        assert float(torch.exp(-losses).sum().detach()) == pytest.approx(1)
        assert tags[losses.argmin(), :3].tolist() == crf.best(scores, [3])[0]

    def test_tags_that_may_not_follow_never_do(self) -> None:
        labels = ["B-X", "I-X", "I-Y", "O"]
        scores = torch.randn(50, 6, 4, generator=torch.Generator().manual_seed(0))
        zeros = torch.zeros(4, 4), torch.zeros(4), torch.zeros(4)
        for row in viterbi(scores, [6] * 50, *zeros, allowed_bio(labels)):
            for before, tag in zip(["O", *(labels[k] for k in row)], [labels[k] for k in row], strict=False):
                assert not tag.startswith("I-") or (before[:1] in "BI" and before[2:] == tag[2:])

    def test_a_row_does_not_see_its_padding_or_its_neighbours(self) -> None:
        torch.manual_seed(0)
        lstm, x = BiLSTM(3, 4, layers=2).eval(), torch.randn(2, 5, 3)
        alone = lstm(x[:1, :2], [2])
        torch.testing.assert_close(lstm(x, [2, 5])[:1, :2], alone)
        assert (lstm(x, [2, 5])[0, 2:] == 0).all()

    def test_what_is_masked_has_no_share(self) -> None:
        shares = masked_softmax(torch.tensor([[1.0, 5.0], [2.0, 2.0]]), torch.tensor([[True, False], [False, False]]))
        assert shares.tolist() == [[1, 0], [0, 0]]
        assert torch.finfo(torch.float16).min < IMPOSSIBLE


class TestSpans:
    def test_spans_are_those_of_conlleval(self) -> None:
        assert spans_of(["B-X", "I-X", "O", "I-X", "I-Y", "B-Y", "B-Y"]) == [
            ("X", 0, 2), ("X", 3, 4), ("Y", 4, 5), ("Y", 5, 6), ("Y", 6, 7),
        ]  # fmt: skip
        assert spans_of([]) == []

    @given(st.lists(TAGS, max_size=12))
    def test_spans_cover_each_tagged_token_once(self, tags: list[str]) -> None:
        covered = [place for _, start, end in spans_of(tags) for place in range(start, end)]
        assert covered == [place for place, tag in enumerate(tags) if tag != "O"]

    def test_a_span_is_right_with_both_ends_and_its_kind(self) -> None:
        gold = [("X", 0, 2), ("Y", 3, 4)]
        found = [("X", 0, 2), ("X", 3, 4), ("Y", 3, 5)]
        assert span_scores([(gold, found)]) == pytest.approx({"precision": 1 / 3, "recall": 1 / 2, "f1": 0.4})
        assert span_scores([([], [])])["f1"] == 0

    @given(st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=8), min_size=1, max_size=4))
    def test_scores_are_those_of_seqeval(self, sentences: list[list[tuple[str, str]]]) -> None:
        gold, found = ([[pair[side] for pair in sentence] for sentence in sentences] for side in (0, 1))
        scores = span_scores(zip(map(spans_of, gold), map(spans_of, found), strict=True))
        expected = precision_recall_fscore_support(gold, found, average="micro", zero_division=0)
        assert tuple(scores.values()) == pytest.approx(expected[:3])


class TestColumns:
    def test_the_published_layouts_are_read(self, tmp_path: Path) -> None:
        file = tmp_path / "x"
        for text in (
            "Ann\tB-PER\nran\tO\n",
            "-DOCSTART- -X- O O\n\nAnn NNP I-NP I-PER\nran VBD I-VP O\n\n",
            "# sent_id = 1\n# text = Ann ran\n1\tAnn\tB-PER\n2\tran\tO\n",
            "# text = Ann ran\n1\tAnn\tB-PER\t-\tsomeone\n2\tran\tO\t-\t-\n",
        ):
            ends = (text.replace("\n", end) for end in ("\r\n", " \n", "\t\n", " \t \r\n"))
            for same in (text, "\ufeff" + text, text[:-1], *ends):
                file.write_bytes(same.encode())
                assert read_columns(str(file)) == [TaggedSentence(("Ann", "ran"), ("B-PER", "O"))]

    def test_a_token_that_is_a_number_is_no_row_number(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_text("Ann NNP I-NP I-PER\n2 CD B-NP O\n\n1 CD B-NP O\n")
        assert [one.tokens for one in read_columns(str(tmp_path / "x"))] == [("Ann", "2"), ("1",)]
        (tmp_path / "x").write_text("1 CD B-NP O\n")
        assert [one.tokens for one in read_columns(str(tmp_path / "x"))] == [("1",)]

    def test_row_numbers_stand_in_all_sentences_or_in_none(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_text("1\tAnn\tB-PER\n2\tran\tO\n\n1\t2\tO\n\n1\t1\tO\n2\tran\tO\n")
        assert [one.tokens for one in read_columns(str(tmp_path / "x"))] == [("Ann", "ran"), ("2",), ("1", "ran")]

    def test_a_document_s_beginning_is_no_token_with_or_without_a_blank_line(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_text("-DOCSTART- O\nAnn B-PER\n-DOCSTART- O\n\nran O\n\n-DOCSTART-\nfar O\n")
        assert [one.tokens for one in read_columns(str(tmp_path / "x"))] == [("Ann",), ("ran",), ("far",)]

    @pytest.mark.parametrize("between", [" ", "\t"])
    def test_a_token_that_looks_like_a_comment_is_none(self, tmp_path: Path, between: str) -> None:
        first, second = ("\n".join(rows).replace(" ", between) for rows in (["# B-X", "2 I-X"], ["#NFL O", "ran O"]))
        (tmp_path / "x").write_text(f"# text = O\n#id\n#\n{first}\n\n# id = 7\n{second}\n")
        assert [one.tokens for one in read_columns(str(tmp_path / "x"))] == [("#", "2"), ("#NFL", "ran")]

    @given(
        st.lists(
            st.lists(
                st.tuples(st.sampled_from(["#", "1", "2", "O", "#1", "B-X", "-", "a"]), TAGS), min_size=1, max_size=4
            ),
            max_size=3,
        ),
        st.sampled_from(["\t", " "]),
        st.sampled_from([(), ("NN",), ("CD", "B-NP")]),
    )
    def test_every_row_is_a_token(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        drawn: list[list[tuple[str, str]]],
        between: str,
        others: tuple[str, ...],
    ) -> None:
        sentences = [*([("Ann", "B-X"), ("ran", "O")] for _ in range(4)), *drawn]
        rows = ("".join(between.join([word, *others, tag]) + "\n" for word, tag in one) for one in sentences)
        path = tmp_path_factory.getbasetemp() / "drawn.conll"
        path.write_text("\n".join(rows))
        assert [one.tokens for one in read_columns(str(path))] == [tuple(word for word, _ in one) for one in sentences]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("Ann\tB-PER\nran\n", "line 2: found 1 columns, expected 2"),
            ("Ann\tPER\n", "line 1: found the tag 'PER', expected O, B-KIND or I-KIND"),
            ("\tO\n", "line 1: found no token"),
            ("Ann\n", "line 1: found 1 columns, expected 2: a token, and a tag"),
            ("\n\n", "has no sentence"),
            ("", "has no sentence"),
            ("# Ann O\n", "has no sentence"),
            ("-DOCSTART- -X- O O\n", "has no sentence"),
            ("Ann\tB-PER\n# ran\n", "line 2: found 2 columns|line 2: found the tag"),
            ("#NFL O\n# an aside\nran O\n", "line 2: found 3 columns, expected 2"),
            ("1\ta\tO\n2\tb\tO\n4\tc\tO\n\n1\ta\tO\n2\tb\tO\n\n1\ta\tO\n2\tb\tO\n", "line 3: found row number '4'"),
            ("1\t \tO\n2\ta\tO\n", "line 1: found no token, expected one in column 2"),
            ("1\ta\tO\t-\tx\n2\ta\tN\t-\tx\n", "line 2: found the tag 'N'"),
        ],
    )
    def test_a_malformed_line_is_named(self, tmp_path: Path, text: str, message: str) -> None:
        file = tmp_path / "x.conll"
        file.write_text(text)
        with pytest.raises(ElmoError, match=message):
            read_columns(str(file))


class TestWordVectors:
    @pytest.mark.parametrize("text", ["cat 1 0\ndog 0 2\n", "2 2\ncat 1 0\ndog 0 2 \n", "cat 1 0\r\n\r\ndog 0 2"])
    @pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
    def test_text_files_are_read(self, tmp_path: Path, text: str, mark: bytes) -> None:
        (tmp_path / "v.txt").write_bytes(mark + text.encode())
        found = WordVectors.read(str(tmp_path / "v.txt"))
        assert found.words == ("cat", "dog")
        assert found.vectors.tolist() == [[1, 0], [0, 2]]

    @pytest.mark.parametrize("sizes", ["", "4 2\n"])
    def test_a_word_may_have_spaces_in_it(self, tmp_path: Path, sizes: str) -> None:
        (tmp_path / "v.txt").write_text(sizes + "cat 1 0\n. . . 0 2\nat name@domain.com 3 0\n7 4 5\n")
        found = WordVectors.read(str(tmp_path / "v.txt"))
        assert found.words == ("cat", ". . .", "at name@domain.com", "7")
        assert found.vectors.tolist() == [[1, 0], [0, 2], [3, 0], [4, 5]]

    def test_no_more_is_read_of_a_file_than_is_taken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(words_module, "_MOST_WORDS", 2)
        monkeypatch.setattr(task_files, "_MOST_BYTES", 10)
        (tmp_path / "v.txt").write_text("cat 1 0\ndog 0 2\nno vector\n" + "x" * 100)
        assert WordVectors.read(str(tmp_path / "v.txt")).words == ("cat", "dog")
        monkeypatch.setattr(words_module, "_LONGEST_LINE", 7)
        with pytest.raises(ElmoError, match="line 1: found over 7 bytes, expected a line"):
            WordVectors.read(str(tmp_path / "v.txt"))

    def test_a_file_cannot_take_the_names_of_what_is_no_file(
        self, bilm: elmo.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = WordVectors.read("default").digest()
        monkeypatch.chdir(tmp_path)
        for name in ("default", "none"):
            Path(name).write_text("cat 1 0\n")
        assert WordVectors.read("default").digest() == own
        assert WordVectors.read("./default").words == ("cat",)
        model, _ = new_model(Entities(), small(encoder={"elmo": "none"}), Data(sentences(4), sentences(2)), bilm)
        assert "cat" not in model.encoder.words
        Path("default").unlink()
        Path("default").mkdir()
        assert WordVectors.read("default").digest() == own

    def test_a_folder_holds_them_to_8_bits(self, tmp_path: Path) -> None:
        vectors = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32) * [[1], [100], [0]]
        WordVectors(("cat", "dog\r", "é"), vectors.astype(np.float32)).write(tmp_path / "v")
        found = WordVectors.read(str(tmp_path / "v"))
        assert found.words == ("cat", "dog\r", "é")
        assert (np.abs(found.vectors - vectors) <= np.abs(vectors).max(axis=1, keepdims=True) / 253).all()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("cat 1 0\ndog 0\n", "line 2: found a word and 1 numbers, expected 2 numbers"),
            ("cat 1 0\ndog 0 2 3\n", "line 2: found a word and 3 numbers, expected 2 numbers"),
            ("cat 1 x\n", "line 1: found something that is no number, expected a word and its 2 numbers"),
            ("cat nan 1\n", "no number"),
            ("cat 1 1e40\n", "no number"),
            ("cat\n", "line 1: found a word and 0 numbers, expected 1 to 4,096 numbers"),
            ("cat" + " 1" * 4097, "line 1: found a word and 4,097 numbers, expected 1 to 4,096"),
            ("9 99999999999\ncat 1 2\n", "line 2: found a word and 999,999,999 numbers"),
            ("", "no word vec"),
        ],
    )
    def test_a_malformed_line_is_named(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "v.txt").write_text(text)
        with pytest.raises(ElmoError, match=message):
            WordVectors.read(str(tmp_path / "v.txt"))


class TestTraining:
    @pytest.mark.parametrize("place", PLACES)
    def test_a_model_learns(self, bilm: elmo.Model, tmp_path: Path, place: Place) -> None:
        data = Data(sentences(60), sentences(20, 1), sentences(20, 2))
        done = train_task(Entities(), small(encoder={"elmo": place}), data, tmp_path / "run", bilm=bilm)
        assert done.result.test["f1"] > 0.95
        assert set(done.result.layer_weights) == set(EncoderSettings(elmo=place).places)
        stored = read_result(tmp_path / "run")
        assert stored is not None
        assert stored.test == done.result.test
        assert max(done.result.curve) == pytest.approx(done.result.dev["f1"])

    def test_a_biLM_can_be_trained_with_it(self, tmp_path: Path) -> None:  # noqa: N802 - its name
        write_model(tmp_path / "bilm", small_options())
        model = elmo.load(tmp_path / "bilm")
        before = model.bilm.forwards[0].kernel.detach().clone()  # type: ignore[operator]
        config = small(encoder={"train_bilm": True}, train={"epochs": 1})
        trained = train_task(Entities(), config, Data(sentences(16), sentences(8, 1)), tmp_path / "run", bilm=model)
        assert not torch.equal(before, model.bilm.forwards[0].kernel)  # type: ignore[arg-type]
        save_task(trained, model, tmp_path / "out", embedded=False)
        answers = load_task(tmp_path / "out").answers(sentences(8, 1))
        assert Entities().scores(sentences(8, 1), answers) == trained.result.dev
        assert read_learned(tmp_path / "out") == Learned("out", "ner", trained.result.layer_weights)

    def test_one_that_names_the_embedded_model_wants_the_same(
        self, bilm: elmo.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trained = train_task(
            Entities(), small(train={"epochs": 1}), Data(sentences(16), sentences(8, 1)), tmp_path / "run", bilm=bilm
        )
        save_task(trained, bilm, tmp_path / "out", embedded=True)
        monkeypatch.setattr(saved, "load", lambda *_: bilm)
        answers = load_task(tmp_path / "out").answers(sentences(8, 1))
        assert Entities().scores(sentences(8, 1), answers) == trained.result.dev
        other = copy.deepcopy(bilm)
        other.bilm.forwards[0].get_parameter("kernel").data.mul_(0.9)
        monkeypatch.setattr(saved, "load", lambda *_: other)
        with pytest.raises(ElmoError, match="trained with the embedded model of another release of elmo"):
            load_task(tmp_path / "out")

    @pytest.mark.parametrize(
        "about",
        [
            {"format": "elmo task", "version": 1},
            {"format": "elmo task", "version": 1, "config": {"task": "ner"}, "layer_weights": {"input": ["x"]}},
            {"format": "elmo task", "version": 1, "config": {"task": "cooking"}, "layer_weights": {}},
        ],
    )
    def test_what_is_no_whole_task_model_has_learned_nothing(self, tmp_path: Path, about: dict[str, object]) -> None:
        (tmp_path / "task.json").write_text(json.dumps(about))
        with pytest.raises(ElmoError, match="is no whole task model"):
            read_learned(tmp_path)

    @given(st.lists(st.text(alphabet=st.characters(exclude_categories=()))))
    def test_any_words_come_back(self, tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
        path = tmp_path_factory.getbasetemp() / "words.json"
        write_words(path, words)
        assert read_words(path) == words

    @pytest.mark.parametrize("tokens", [(), ("a\r", "b\nc", "\ud800", "\ud83d", "\ude00", "", "é")])
    def test_a_model_comes_back_with_any_words(self, bilm: elmo.Model, tmp_path: Path, tokens: tuple[str, ...]) -> None:
        data = Data([TaggedSentence((*tokens, *tokens, "x"), ("O",) * (2 * len(tokens) + 1))], sentences(2, 1))
        trained = train_task(Entities(), small(encoder={"elmo": "none"}), data, tmp_path / "run", bilm=bilm)
        assert trained.model.encoder.words == tuple(sorted(tokens))
        save_task(trained, bilm, tmp_path / "out", embedded=True)
        assert load_task(tmp_path / "out").model.encoder.words == tuple(sorted(tokens))
        for content in ("{}", "[1]", "["):
            (tmp_path / "out" / "words.json").write_text(content)
            with pytest.raises(ElmoError, match=r"words\.json: found|is no whole task model"):
                load_task(tmp_path / "out")
        (tmp_path / "out" / "words.json").rename(tmp_path / "out" / "words.txt")
        with pytest.raises(ElmoError, match=r"has no words\.json: a model .* words\.txt, .* must be trained again"):
            load_task(tmp_path / "out")

    def test_a_run_that_was_cut_goes_on_to_the_same_bits(self, bilm: elmo.Model, tmp_path: Path) -> None:
        data, config = Data(sentences(30), sentences(10, 1)), small()

        def training() -> TaskTraining[TaggedSentence, tuple[str, ...]]:
            model, _ = new_model(Entities(), config, data, bilm)
            frozen = FrozenLayers(bilm.embedder(layers="all"), (one.tokens for one in [*data.train, *data.dev]))
            return TaskTraining(Entities(), config, model, data.train, data.dev, frozen=frozen)

        run_training(training(), tmp_path / "whole")

        def cut(report: Any) -> None:
            if report.event.step == 6:
                raise RuntimeError("cut")

        with pytest.raises(RuntimeError, match="cut"):
            run_training(training(), tmp_path / "cut", report=cut)
        run_training(training(), tmp_path / "cut", resume=True)
        for name in ("last.safetensors", "best.safetensors", "metrics.jsonl"):
            assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    def test_a_loss_that_is_no_number_ends_the_run_before_it_is_saved(self, bilm: elmo.Model, tmp_path: Path) -> None:
        config = small(encoder={"elmo": "none"})
        data = Data(sentences(30), sentences(10, 1))
        model, _ = new_model(Entities(), config, data, bilm)
        training = TaskTraining(Entities(), config, model, data.train, data.dev)

        def spoil(report: Any) -> None:
            if report.event.step == training.steps_an_epoch + 1:
                next(model.parameters()).data.fill_(math.nan)

        wrong = r"not a number any more at step \d+ .* the last good checkpoint is of step"
        with pytest.raises(ElmoError, match=wrong):
            run_training(training, tmp_path, report=spoil)
        _, saved = read_tensors(tmp_path / "last.safetensors")
        assert all(tensor.isfinite().all() for tensor in saved.values() if tensor.is_floating_point())

    def test_tf32_is_for_the_steps_alone(self, bilm: elmo.Model, monkeypatch: pytest.MonkeyPatch) -> None:
        config = small(encoder={"elmo": "none"}, train={"precision": "tf32"})
        data = Data(sentences(10), sentences(5, 1))
        model, _ = new_model(Entities(), config, data, bilm)
        training = TaskTraining(Entities(), config, model, data.train, data.dev)
        seen, loss = [], model.loss

        def watched(batch: Any) -> torch.Tensor:
            seen.append(torch.get_float32_matmul_precision())
            return loss(batch)

        monkeypatch.setattr(model, "loss", watched)
        next(training.takes(training.reads()))
        assert set(seen) == {"high"}
        assert torch.get_float32_matmul_precision() == "highest"

    def test_other_settings_or_examples_are_not_resumed(self, bilm: elmo.Model, tmp_path: Path) -> None:
        data = Data(sentences(10), sentences(5, 1))
        config = small(train={"epochs": 1}, encoder={"elmo": "none"})
        train_task(Entities(), config, data, tmp_path, bilm=bilm)
        with pytest.raises(ElmoError, match="a run with seed = 0, the config says 1"):
            train_task(Entities(), replace(config, seed=1), data, tmp_path, bilm=bilm, resume=True)
        with pytest.raises(ElmoError, match="other examples"):
            train_task(Entities(), config, Data(sentences(10, 7), data.dev), tmp_path, bilm=bilm, resume=True)

    def test_a_smaller_share_is_part_of_a_larger_one(self, bilm: elmo.Model) -> None:
        data = Data(sentences(40), sentences(5, 1))
        drawn = []
        for share in (0.1, 0.5, 1.0):
            config = small(train={"share": share}, encoder={"elmo": "none"})
            model, _ = new_model(Entities(), config, data, bilm)
            drawn.append(TaskTraining(Entities(), config, model, data.train, data.dev).train_examples)
        assert [len(examples) for examples in drawn] == [4, 20, 40]
        assert set(drawn[0]) <= set(drawn[1])

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ("train.epochs=0", "train.epochs"),
            ("train.epoch=2", "did you mean train.epochs"),
            ("model.hidden=x", "model.hidden"),
            ("encoder.elmo=top", "encoder.elmo"),
            ("seed=-1", "seed"),
        ],
    )
    def test_a_wrong_setting_is_named(self, change: str, named: str) -> None:
        with pytest.raises(ElmoError, match=named):
            TaskConfig.of(Entities(), sets=[change])


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_a_task_of_raw_lines_takes_words_with_spaces_between_them_and_others_want_marks(task: Task[Any, Any]) -> None:
    if task.raw_lines:
        assert task.parse(["Cats sleep ."])
    else:
        with pytest.raises(ElmoError, match="line 1: "):
            task.parse(["Cats sleep ."])
