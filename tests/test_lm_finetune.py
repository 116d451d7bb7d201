"""A model goes on with text of another domain: what it learns, what it keeps, what it leaves behind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import elmo
from conftest import run_elmo, small_options, write_model
from elmo.errors import ElmoError
from elmo.lm.begin import start_model
from elmo.lm.corpus import Corpus
from elmo.lm.distributed import Ranks
from elmo.lm.finetune import FinetuneConfig, finetune, finetune_settings
from elmo.lm.folder import MODEL
from elmo.lm.loop import Report
from elmo.lm.prepare import PrepareConfig, prepare
from elmo.lm.run import pretrain
from elmo.lm.settings import TrainConfig
from elmo.lm.softmax import AdaptiveHead, SoftmaxHead
from elmo.lm.train import Stepped, Training, Validated
from lm_corpus import small_corpus


def law_text(seed: int = 0, documents: int = 40) -> str:
    """A domain of its own: `the` and `.` are known to the model, the other words are not."""
    rng = np.random.default_rng(seed)
    nouns, verbs = ["court", "judge", "party", "claim"], ["dismisses", "hears", "grants"]

    def line() -> str:
        subject, thing = rng.choice(nouns, 2)
        return f"the {subject} {rng.choice(verbs)} the {thing} of the {rng.choice(nouns)} ."

    return "\n\n".join("\n".join(line() for _ in range(6)) for _ in range(documents)) + "\n"


def pretrained(folder: Path, **softmax: Any) -> Path:
    raw = {
        "model": small_options(),
        "data": {"rows": 4, "unroll_steps": 6},
        "softmax": softmax or {"kind": "full"},
        "train": {"steps": 150, "validate_every": 150},
    }
    pretrain(TrainConfig.from_dict(raw), small_corpus(), folder)
    return folder / MODEL


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrained(tmp_path_factory.mktemp("run"))


@pytest.fixture
def model(model_path: Path) -> elmo.Model:
    return elmo.load(model_path)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "law.txt"
    path.write_text(law_text())
    return path


@pytest.fixture
def corpus(text: Path, tmp_path: Path) -> Corpus:
    return prepare([str(text)], tmp_path / "prepared", PrepareConfig(valid_share=0.1), workers=1)


def tuned(model: elmo.Model, text: Path, out: Path, **changes: Any) -> Any:
    """Fine-tune in this process."""
    asked = {name: changes.pop(name) for name in ("keep_vocab", "epochs", "sets") if name in changes}
    return finetune(model, [str(text)], out, FinetuneConfig(**asked), workers=1, device="cpu", **changes)


def cut_at(step: int) -> Callable[[Report[Stepped, Validated]], None]:
    def report(done: Report[Stepped, Validated]) -> None:
        if isinstance(done.event, Stepped) and done.event.step == step:
            raise KeyboardInterrupt

    return report


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class TestResult:
    def test_held_out_text_of_the_domain_becomes_far_less_surprising(
        self, model: elmo.Model, text: Path, tmp_path: Path
    ) -> None:
        done = tuned(model, text, tmp_path / "out")
        assert done.after.perplexity < 0.7 * done.before.perplexity
        assert done.after.forward < done.before.forward
        assert done.after.backward < done.before.backward
        assert done.after.positions == done.before.positions
        assert not done.fresh_head

    def test_is_a_native_folder_with_head_vocabulary_and_a_card_that_says_where_it_comes_from(
        self, model: elmo.Model, text: Path, tmp_path: Path
    ) -> None:
        done = tuned(model, text, tmp_path / "out", name="some/base-model")
        result = elmo.load(tmp_path / "out")
        assert isinstance(result.head, SoftmaxHead)
        assert result.vocab is not None
        assert {"court", "dismisses", "the", "<UNK>"} <= set(result.vocab)
        assert "cat" not in result.vocab
        assert result.card is not None
        assert "`base-model`" in result.card
        assert "`law.txt`" in result.card
        for figure in (done.before.perplexity, done.after.perplexity, math.exp(done.after.backward)):
            assert f"| {figure:.2f} |" in result.card
        assert "> # An ELMo model" in result.card  # the former card, quoted
        assert str(tmp_path) not in result.card
        assert left_in(tmp_path) == {"law.txt", "out"}

    def test_the_perplexity_after_is_that_of_the_model_that_was_written(
        self, model: elmo.Model, corpus: Corpus, tmp_path: Path
    ) -> None:
        done = tuned(model, corpus.folder, tmp_path / "out")
        result = elmo.load(tmp_path / "out")
        settings = finetune_settings(result, corpus)
        again = Training(settings, corpus, Ranks(), start_model(result, corpus, settings)).validate()
        assert again.loss == pytest.approx(done.after.loss, rel=1e-6)

    def test_the_model_that_was_given_is_not_changed(self, model: elmo.Model, text: Path, tmp_path: Path) -> None:
        assert model.head is not None
        before = {name: w.clone() for name, w in {**model.bilm.state_dict(), **model.head.state_dict()}.items()}
        tuned(model, text, tmp_path / "out", keep_vocab=True, epochs=1)
        for name, weight in {**model.bilm.state_dict(), **model.head.state_dict()}.items():
            assert torch.equal(weight, before[name])
        assert not any(weight.requires_grad for weight in model.head.parameters())

    def test_if_nothing_gets_better_it_stops_early_and_the_result_is_the_start(
        self, model: elmo.Model, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Training, "validate", lambda self: Validated(self.step, 1.0 + self.step, 1.0, 10))
        done = tuned(model, text, tmp_path / "out", epochs=50)
        assert done.after == done.before
        epoch = finetune_settings(model, prepare([str(text)], tmp_path / "p", workers=1)).train.validate_every * 2
        assert done.steps <= 2 * epoch
        for name, weight in elmo.load(tmp_path / "out").bilm.state_dict().items():
            assert torch.equal(weight, model.bilm.state_dict()[name])

    def test_a_warm_state_and_a_mix_of_the_old_weights_are_left_out(
        self, model: elmo.Model, text: Path, tmp_path: Path
    ) -> None:
        with_parts = replace(model.warmed(["the cat sees the dog"]), mix=elmo.ScalarMix(3))
        tuned(with_parts, text, tmp_path / "out", epochs=1)
        result = elmo.load(tmp_path / "out")
        assert result.warm is None
        assert result.mix is None

    def test_the_seed_decides_everything(self, model: elmo.Model, text: Path, tmp_path: Path) -> None:
        for name in ("a", "b"):
            tuned(model, text, tmp_path / name, epochs=1)
        assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


class TestVocabulary:
    def test_known_words_keep_their_rows_and_new_ones_divide_the_probability_of_unk(
        self, model: elmo.Model, corpus: Corpus
    ) -> None:
        assert isinstance(model.head, SoftmaxHead)
        assert model.vocab is not None
        head = start_model(model, corpus, finetune_settings(model, corpus)).head
        assert isinstance(head, SoftmaxHead)
        known = [word for word in corpus.vocab if word in model.vocab and word != "<UNK>"]
        assert {"<S>", "</S>", "the", "hears", "."} == set(known)
        new, old = corpus.vocab.ids(known), model.vocab.ids(known)
        assert torch.equal(head.weight[new], model.head.weight[old])
        assert torch.equal(head.bias[new], model.head.bias[old])
        h = torch.randn(7, head.weight.shape[1])
        others = corpus.vocab.ids([word for word in corpus.vocab if word not in known])
        unknown = model.vocab.ids(["<UNK>"])[0]
        torch.testing.assert_close(head.logits(h)[:, others].logsumexp(dim=1), model.head.logits(h)[:, unknown])
        court, dismisses = (head.bias[corpus.vocab.ids([word])] for word in ("court", "dismisses"))
        assert court > dismisses  # four nouns in three places a sentence, three verbs in one

    def test_keep_vocab_keeps_the_words_of_the_model(self, model: elmo.Model, text: Path, tmp_path: Path) -> None:
        tuned(model, text, tmp_path / "out", keep_vocab=True, epochs=1)
        result = elmo.load(tmp_path / "out")
        assert result.vocab is not None
        assert model.vocab is not None
        assert result.vocab.words == model.vocab.words

    def test_an_adaptive_softmax_stays_one_with_its_vocabulary_and_cannot_take_another(
        self, text: Path, tmp_path: Path
    ) -> None:
        model = elmo.load(pretrained(tmp_path / "run", kind="adaptive", cutoffs=[8]))
        with pytest.raises(ElmoError, match=r"adaptive softmax.*--keep-vocab"):
            tuned(model, text, tmp_path / "out")
        done = tuned(model, text, tmp_path / "out", keep_vocab=True)
        result = elmo.load(tmp_path / "out")
        assert isinstance(result.head, AdaptiveHead)
        assert result.head.cutoffs == (8,)
        assert done.after.perplexity < done.before.perplexity

    def test_a_model_that_reads_words_learns_with_its_own(self, text: Path, tmp_path: Path) -> None:
        words = elmo.Vocabulary(["<S>", "</S>", "<UNK>", "the", "court", "judge", "of", "."])
        write_model(tmp_path / "m", {"lstm": small_options()["lstm"], "n_tokens_vocab": len(words)}, scale=0.1)
        words.write(tmp_path / "m" / "vocab.txt")
        model = elmo.load(tmp_path / "m")
        with pytest.raises(ElmoError, match=r"reads words.*--keep-vocab"):
            tuned(model, text, tmp_path / "out")
        done = tuned(model, text, tmp_path / "out", keep_vocab=True)
        assert done.after.perplexity < done.before.perplexity
        assert elmo.load(tmp_path / "out").embed(["the court"])[0].shape == (2, 10)


class TestWithoutHead:
    def test_an_hdf5_gets_a_new_head_on_the_words_of_the_text(self, text: Path, tmp_path: Path) -> None:
        write_model(tmp_path / "hdf5", small_options(), scale=0.2)
        done = tuned(elmo.load(tmp_path / "hdf5"), text, tmp_path / "out")
        assert done.fresh_head
        assert done.after.perplexity < done.before.perplexity
        result = elmo.load(tmp_path / "out")
        assert result.vocab is not None
        assert "dismisses" in result.vocab
        assert result.card is not None
        assert "a new, untrained head" in result.card

    def test_the_new_head_learns_alone_at_first(self, model: elmo.Model, text: Path, tmp_path: Path) -> None:
        bare = replace(model, head=None)
        tuned(bare, text, tmp_path / "one", epochs=1, sets=("train.head_steps=1000",))
        result = elmo.load(tmp_path / "one")
        for name, weight in result.bilm.state_dict().items():
            assert torch.equal(weight, model.bilm.state_dict()[name])
        tuned(bare, text, tmp_path / "all", epochs=1, sets=("train.head_steps=0",))
        name = "forwards.0.kernel"
        assert not torch.equal(elmo.load(tmp_path / "all").bilm.get_parameter(name), model.bilm.get_parameter(name))

    @pytest.mark.parametrize(
        ("epochs", "sets"), [(1, ()), (3, ("data.rows=24",)), (3, ("train.steps=5",)), (3, ("train.epochs=1",))]
    )
    def test_a_short_run_is_not_all_the_head_s(
        self, model: elmo.Model, text: Path, tmp_path: Path, epochs: int, sets: tuple[str, ...]
    ) -> None:
        tuned(replace(model, head=None), text, tmp_path / "out", epochs=epochs, sets=sets)
        name = "forwards.0.kernel"
        assert not torch.equal(elmo.load(tmp_path / "out").bilm.get_parameter(name), model.bilm.get_parameter(name))


@pytest.mark.parametrize("keep_vocab", [False, True])
def test_what_a_run_writes_is_no_text_of_its_own(
    model: elmo.Model, text: Path, tmp_path: Path, keep_vocab: bool
) -> None:
    model = replace(model, vocab=model.vocab)
    expected = tuned(model, text, tmp_path.parent / f"{tmp_path.name}-{keep_vocab}", keep_vocab=keep_vocab)
    pattern = tmp_path / "*"
    with pytest.raises(KeyboardInterrupt):
        tuned(model, pattern, tmp_path / "out", keep_vocab=keep_vocab, report=cut_at(9))
    assert tuned(model, pattern, tmp_path / "out", keep_vocab=keep_vocab, resume=True) == expected
    assert tuned(model, pattern, tmp_path / "out", keep_vocab=keep_vocab, overwrite=True) == expected


def test_a_run_with_a_new_head_may_become_longer(model: elmo.Model, text: Path, tmp_path: Path) -> None:
    bare = replace(model, head=None)
    with pytest.raises(KeyboardInterrupt):
        tuned(bare, text, tmp_path / "out", epochs=1, report=cut_at(9))
    assert tuned(bare, text, tmp_path / "out", epochs=2, resume=True).steps > 9


def test_an_epoch_is_that_of_the_rows_that_were_asked_for(model: elmo.Model, corpus: Corpus) -> None:
    paces = [finetune_settings(replace(model, head=None), corpus, sets=(f"data.rows={n}",)).train for n in (4, 16)]
    few, many = (each.head_steps or 0 for each in paces)
    assert 3.5 * many <= few <= 4.5 * many + 4
    assert paces[0].validate_every > 3 * paces[1].validate_every


class TestSettingsOfNoUse:
    @pytest.mark.parametrize(
        ("one", "message"),
        [
            ("train.validate_first=false", "compared with the model before it"),
            ("model.lstm.cell_clip=5", "the model to fine-tune says what it is"),
            ("corpus=elsewhere", "the text to fine-tune on is given by itself"),
        ],
    )
    def test_are_refused_before_the_work(
        self, model: elmo.Model, text: Path, tmp_path: Path, one: str, message: str
    ) -> None:
        with pytest.raises(ElmoError, match=message):
            tuned(model, text, tmp_path / "out", sets=(one,))
        assert left_in(tmp_path) == {"law.txt"}

    def test_prepared_text_is_not_prepared_again(self, model: elmo.Model, corpus: Corpus, tmp_path: Path) -> None:
        config = FinetuneConfig(prepare=PrepareConfig(valid_share=0.2, max_words=100, seed=3))
        with pytest.raises(ElmoError, match=r"leave out what says how \(max_words, valid_share\)"):
            finetune(model, [str(corpus.folder)], tmp_path / "out", config, device="cpu")
        assert not (tmp_path / "out.finetune").exists()


class TestResume:
    @pytest.mark.parametrize("step", [1, 17])
    def test_a_run_that_was_cut_goes_on_to_the_same_bytes(
        self, model: elmo.Model, text: Path, tmp_path: Path, step: int
    ) -> None:
        whole = tuned(model, text, tmp_path / "whole")
        with pytest.raises(KeyboardInterrupt):
            tuned(model, text, tmp_path / "cut", report=cut_at(step))
        assert left_in(tmp_path) == {"law.txt", "whole", "cut.finetune"}
        with pytest.raises(ElmoError, match=r"cut\.finetune is left of a run.*--resume goes on with it"):
            tuned(model, text, tmp_path / "cut")
        assert tuned(model, text, tmp_path / "cut", resume=True) == whole
        for name in ("model.safetensors", "vocab.txt", "README.md"):
            assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        assert left_in(tmp_path) == {"law.txt", "whole", "cut"}

    def test_overwrite_starts_again(self, model: elmo.Model, text: Path, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt):
            tuned(model, text, tmp_path / "out", report=cut_at(9))
        steps: list[int] = []
        tuned(
            model, text, tmp_path / "out", epochs=1, overwrite=True, report=lambda done: steps.append(done.event.step)
        )
        assert steps[0] == 0

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            ("model", "started from another model"),
            ("text", "text has changed since"),
            ("rate", r"optimizer\.rate = "),
            ("vocabulary", "was made with other settings"),
        ],
    )
    def test_what_is_left_of_another_run_is_refused_and_kept(
        self, model: elmo.Model, text: Path, tmp_path: Path, other: str, message: str
    ) -> None:
        with pytest.raises(KeyboardInterrupt):
            tuned(model, text, tmp_path / "out", report=cut_at(9))
        changes: dict[str, Any] = {}
        if other == "model":
            model.bilm.get_parameter("forwards.0.kernel").mul_(1.01)
        elif other == "text":
            text.write_text(law_text(1) + law_text(2))
        elif other == "rate":
            changes["sets"] = ("optimizer.rate=0.031",)
        else:
            changes["keep_vocab"] = True
        with pytest.raises(ElmoError, match=message):
            tuned(model, text, tmp_path / "out", resume=True, **changes)
        assert (tmp_path / "out.finetune" / "run" / "last.safetensors").exists()

    def test_a_folder_of_somebody_else_is_not_taken_for_a_run(
        self, model: elmo.Model, text: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "out.finetune").mkdir()
        (tmp_path / "out.finetune" / "thesis.tex").touch()
        with pytest.raises(ElmoError, match=r"something else than a run that was cut \(thesis\.tex\)"):
            tuned(model, text, tmp_path / "out", overwrite=True)
        assert (tmp_path / "out.finetune" / "thesis.tex").exists()


class TestBadInput:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "law.txt"),
            ("", "there is no word in the text"),
            ("\n \n", "there is no word in the text"),
            ("the court rises .\n", "one document, so none can be held out"),
            ("a b\n\nc d\n", "no word occurs 2 times"),
        ],
        ids=["no such file", "empty", "blank", "one document", "no word twice"],
    )
    def test_text_of_no_use_is_refused_and_leaves_nothing(
        self, model: elmo.Model, tmp_path: Path, content: str | None, message: str
    ) -> None:
        path = tmp_path / "law.txt"
        if content is not None:
            path.write_text(content)
        before = left_in(tmp_path)
        with pytest.raises(ElmoError, match=message):
            tuned(model, path, tmp_path / "out")
        assert left_in(tmp_path) == before

    def test_a_text_of_two_sentences_is_enough(self, model: elmo.Model, tmp_path: Path) -> None:
        (tmp_path / "law.txt").write_text("the court hears the court .\n\nthe judge hears .\n")
        assert tuned(model, tmp_path / "law.txt", tmp_path / "out").before.positions > 0

    @pytest.mark.parametrize("what", ["file", "model"])
    def test_what_is_at_out_is_not_overwritten(self, model: elmo.Model, text: Path, tmp_path: Path, what: str) -> None:
        if what == "file":
            (tmp_path / "out").write_text("mine")
        else:
            elmo.save(model, tmp_path / "out")
        with pytest.raises(ElmoError, match=r"is a file|exists"):
            tuned(model, text, tmp_path / "out")
        assert left_in(tmp_path) == {"law.txt", "out"}

    def test_a_setting_that_does_not_exist_is_named_before_any_work(
        self, model: elmo.Model, text: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(ElmoError, match=r"unknown setting optimizer\.rat: did you mean optimizer\.rate"):
            tuned(model, text, tmp_path / "out", sets=("optimizer.rat=1",))
        with pytest.raises(ElmoError, match=r"train\.epochs is 0"):
            tuned(model, text, tmp_path / "out", epochs=0)
        assert left_in(tmp_path) == {"law.txt"}

    def test_a_vocabulary_that_cannot_be_kept_is_refused(
        self, model: elmo.Model, text: Path, corpus: Corpus, tmp_path: Path
    ) -> None:
        write_model(tmp_path / "hdf5", small_options())
        with pytest.raises(ElmoError, match="the model has no vocabulary"):
            tuned(elmo.load(tmp_path / "hdf5"), text, tmp_path / "out", keep_vocab=True)
        elmo.Vocabulary(["the", "<S>", "</S>", "<UNK>"]).write(tmp_path / "hdf5" / "vocab.txt")
        with pytest.raises(ElmoError, match="first lines are the, <S>, </S> and should be <S>, </S>, <UNK>"):
            tuned(elmo.load(tmp_path / "hdf5"), text, tmp_path / "out", keep_vocab=True)
        with pytest.raises(ElmoError, match="prepared with another vocabulary than the model's"):
            tuned(model, corpus.folder, tmp_path / "out", keep_vocab=True)

    def test_a_damaged_prepared_folder_is_refused(self, model: elmo.Model, corpus: Corpus, tmp_path: Path) -> None:
        (corpus.folder / "targets.npy").write_bytes(b"damaged")
        with pytest.raises(ElmoError, match=r"targets\.npy is damaged"):
            tuned(model, corpus.folder, tmp_path / "out")


class TestCommand:
    def test_prints_the_perplexities_before_and_after(self, model_path: Path, text: Path, tmp_path: Path) -> None:
        held_out = tmp_path / "held-out.txt"
        held_out.write_text(law_text(5, 4))
        result = run_elmo(
            "finetune", model_path, text, "-o", tmp_path / "out", "--valid", held_out, "--epochs", 2, "--workers", 1
        )
        assert result.returncode == 0, result.stderr
        before, after = result.stdout.decode().splitlines()
        figures = [float(line.split("perplexity ")[1].split(",")[0]) for line in (before, after)]
        assert before.startswith("before: held-out perplexity")
        assert "forward" in after
        assert "backward" in after
        assert figures[1] < figures[0]
        assert elmo.load(tmp_path / "out").head is not None

    def test_a_mistake_is_one_line_and_exit_code_2(self, model_path: Path, text: Path, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        result = run_elmo("finetune", model_path, text, "-o", tmp_path / "out")
        assert result.returncode == 2
        assert b"exists" in result.stderr
        assert len(result.stderr.splitlines()) == 1


class TestExport:
    def test_bilm_tf_has_no_place_for_the_head_and_says_so(self, model_path: Path, tmp_path: Path) -> None:
        result = run_elmo("convert", model_path, tmp_path / "hdf5", "--format", "bilm-tf")
        assert result.returncode == 0, result.stderr
        assert b"bilm-tf has no place for the language model head; it was left out" in result.stderr
        assert (tmp_path / "hdf5" / "vocab.txt").read_bytes() == (model_path / "vocab.txt").read_bytes()
        ours, theirs = elmo.load(model_path), elmo.load(tmp_path / "hdf5")
        assert theirs.head is None
        sentences = ["the cat sees the dog .", "the judge hears the ü ."]
        for a, b in zip(ours.embed(sentences, layers="all"), theirs.embed(sentences, layers="all"), strict=True):
            assert a.tobytes() == b.tobytes()

    @pytest.mark.parametrize("format", ["native", "bilm-tf"])
    def test_the_head_is_left_out_on_request(self, model_path: Path, tmp_path: Path, format: str) -> None:
        result = run_elmo("convert", model_path, tmp_path / "bare", "--without-head", "--format", format)
        assert result.returncode == 0, result.stderr
        assert result.stderr == b""
        bare, whole = elmo.load(tmp_path / "bare"), elmo.load(model_path)
        assert bare.head is None
        assert bare.vocab is not None
        assert whole.head is not None
        for name, weight in bare.bilm.state_dict().items():
            assert torch.equal(weight, whole.bilm.state_dict()[name])
        if format == "native":
            assert "head" not in json.loads((tmp_path / "bare" / "config.json").read_text())["parts"]
