"""The loop and what a run leaves behind, on a small grammar."""

from __future__ import annotations

import json
import math
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import elmo
from conftest import small_options
from elmo.errors import ElmoError
from elmo.lm.checkpoint import read_tensors
from elmo.lm.distributed import Ranks
from elmo.lm.folder import BEST, LAST, METRICS, MODEL
from elmo.lm.loop import Report, train
from elmo.lm.run import pretrain
from elmo.lm.settings import TrainConfig
from elmo.lm.softmax import AdaptiveHead, SoftmaxHead
from elmo.lm.train import Stepped, Training, Validated
from lm_corpus import MemoryCorpus, sentences, small_corpus


def config(**changes: Any) -> TrainConfig:
    """A run of seconds: 24 steps of 4 rows; `a__b=1` sets a.b."""
    raw: dict[str, Any] = {
        "model": small_options(),
        "data": {"rows": 4, "unroll_steps": 6},
        "softmax": {"kind": "sampled", "samples": 6},
        "train": {"steps": 24, "log_every": 5, "validate_every": 8, "checkpoint_every": 7},
    }
    for key, value in changes.items():
        *sections, last = key.split("__")
        place = raw
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return TrainConfig.from_dict(raw)


def training(corpus: MemoryCorpus | None = None, **changes: Any) -> Training:
    return Training(config(**changes), corpus or small_corpus(), Ranks())


def losses(some: Training, steps: int) -> list[float]:
    events = (event for event in train(some) if isinstance(event, Stepped))
    return [0.5 * (event.forward + event.backward) for _, event in zip(range(steps), events, strict=False)]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


class TestLoop:
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"softmax__kind": "full"},
            {"softmax__kind": "adaptive", "softmax__cutoffs": [8], "softmax__samples": 6},
            {
                "optimizer__kind": "adamw",
                "optimizer__rate": 0.01,
                "optimizer__warmup": 10,
                "optimizer__decay": "cosine",
            },
            {"train__precision": "bf16"},
        ],
        ids=["as published", "full", "adaptive", "adamw", "bf16"],
    )
    def test_learns(self, changes: dict[str, Any]) -> None:
        some = training(**{"train__steps": 150, "train__dropout": 0.0} | changes)
        before = some.validate()
        *_, last = train(some)
        assert isinstance(last, Validated)
        assert last.step == 150
        assert last.perplexity < 0.7 * before.perplexity
        assert max(last.forward, last.backward) < min(before.forward, before.backward)

    def test_a_step_is_adagrad_on_the_clipped_gradient_of_the_loss_times_the_steps(self) -> None:
        some = training(softmax__kind="full", train__dropout=0.0, optimizer__clip=0.5)
        twin = training(softmax__kind="full", train__dropout=0.0)
        parts = some.parts(next(some.stream()))
        positions, _ = twin.lm(parts[0], twin.state)
        torch.autograd.backward(6 * 0.5 * positions.mean(dim=1).sum())
        gradients = {name: w.grad for name, w in twin.lm.named_parameters() if w.grad is not None}
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients.values()))
        event = some.advance(parts)
        assert norm > 0.5
        assert event.norm == pytest.approx(norm, rel=1e-5)
        for name, weight in some.lm.named_parameters():
            g = gradients[name] * 0.5 / norm
            expected = twin.lm.get_parameter(name) - 0.2 * g / torch.sqrt(1 + g * g)
            torch.testing.assert_close(weight, expected, rtol=1e-5, atol=1e-7)

    def test_rows_of_the_table_that_a_step_does_not_touch_stay(self) -> None:
        corpus = MemoryCorpus([sentences(60), [[f"rare{n}" for n in range(200)]]], sentences(5))
        some = training(corpus)
        parts = some.parts(next(some.stream()))
        before = some.lm.get_parameter("head.weight").detach().clone()
        some.advance(parts)
        changed = (some.lm.get_parameter("head.weight").detach() != before).any(dim=1)
        sums = (some.optimizer.state["head.weight.sum"] != 1).any(dim=1)
        assert 3 < int(changed.sum()) < 60
        assert changed[parts[0].targets.flatten()].all()
        assert torch.equal(changed, sums)

    def test_sampling_all_but_one_word_comes_near_the_full_softmax(self) -> None:
        corpus = small_corpus()
        every = len(corpus.vocab) - 1
        sampled = training(corpus, softmax__samples=every, train__dropout=0.0)
        full = training(corpus, softmax__kind="full", train__dropout=0.0)
        np.testing.assert_allclose(losses(sampled, 3), losses(full, 3), rtol=0.1)

    def test_rows_that_forget_start_from_nothing_and_the_others_from_their_state(self) -> None:
        some = training(data__rows=40, data__forget=0.3)
        stream = some.stream()
        some.advance(some.parts(next(stream)))
        parts, kept = some.parts(next(stream)), some._kept(2)
        assert 0 < kept.sum() < 40
        assert not np.array_equal(kept, some._kept(3))
        expected = some.state.where(torch.from_numpy(kept))
        assert torch.equal(expected.c.abs().sum(dim=(0, 1, 3)) > 0, torch.from_numpy(kept))
        with torch.no_grad():
            some.lm.eval()
            losses, _ = some.lm(parts[0], expected)
        found = training(data__rows=40, data__forget=0.3, train__dropout=0.0, softmax__kind="full")
        found.lm.load_state_dict(some.lm.state_dict())
        found.state, found.step = some.state, 1
        event = found.advance(parts)
        assert (event.forward, event.backward) == pytest.approx(losses.mean(dim=1).tolist(), rel=1e-5)

    def test_rows_in_parts_give_the_same_run(self) -> None:
        whole = losses(training(train__dropout=0.0), 10)
        parts = losses(training(train__dropout=0.0, train__accumulate=2), 10)
        np.testing.assert_allclose(parts, whole, rtol=1e-5)

    def test_a_model_that_reads_words_learns_too(self) -> None:
        corpus = small_corpus()
        model = {"lstm": small_options()["lstm"], "n_tokens_vocab": len(corpus.vocab)}
        some = training(corpus, model=model, train__steps=80)
        before = some.validate().loss
        *_, last = train(some)
        assert isinstance(last, Validated)
        assert last.loss < before

    def test_sampled_and_full_training_come_to_the_same_perplexity(self) -> None:
        """6 samples of 18 words: what is validated is the full softmax in both."""
        common: dict[str, Any] = {"train__steps": 300, "train__validate_every": 300, "train__dropout": 0.0}
        common |= {"optimizer__kind": "adamw", "optimizer__rate": 0.02, "optimizer__decay": "linear"}
        (*_, sampled), (*_, full) = (train(training(softmax__kind=kind, **common)) for kind in ("sampled", "full"))
        assert isinstance(sampled, Validated)
        assert isinstance(full, Validated)
        assert sampled.perplexity == pytest.approx(full.perplexity, rel=0.05)

    def test_biases_may_start_from_the_words_frequencies(self) -> None:
        corpus = small_corpus()
        some = training(corpus, softmax__start="unigram")
        shares = some.lm.get_parameter("head.bias").detach().exp()
        expected = torch.from_numpy(corpus.counts() + 1.0)
        torch.testing.assert_close(shares, (expected / expected.sum()).float())
        assert some.validate().loss < training(corpus).validate().loss

    def test_validation_is_the_full_softmax_over_each_sentence_once(self) -> None:
        corpus = small_corpus()
        some = training(corpus)
        valid = some.validate()
        split = corpus.split("valid")
        assert valid.positions == split.n_tokens + split.n_sentences
        assert valid.perplexity == pytest.approx(math.exp(0.5 * (valid.forward + valid.backward)))
        assert valid == some.validate()

    def test_validation_s_row_by_row_state_does_not_change_the_run(self) -> None:
        often, never = training(train__validate_every=1), training(train__validate_every=1000)
        assert losses(often, 6) == losses(never, 6)


class TestBadInput:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"data__rows": 3, "train__accumulate": 2}, r"train\.accumulate is 2: the 3 rows"),
            ({"softmax__samples": 500}, "fewer samples than words"),
            ({"model": {"lstm": {"dim": 8, "projection_dim": 4}, "n_tokens_vocab": 7}}, r"n_tokens_vocab is 7"),
            ({"model__char_cnn__max_characters_per_token": 20}, "prepared with 50"),
        ],
    )
    def test_what_does_not_fit_the_corpus_is_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ElmoError, match=message):
            losses(training(**changes), 1)

    def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        advance = Training.advance

        def poisoned(self: Training, parts: Any) -> Stepped:
            if self.step == 9:
                with torch.no_grad():
                    self.lm.get_parameter("bilm.forwards.0.bias")[0] = math.nan
            return advance(self, parts)

        monkeypatch.setattr(Training, "advance", poisoned)
        with pytest.raises(
            ElmoError, match=r"not a number any more at step 10 .* the last good checkpoint is of step 8"
        ):
            pretrain(config(), small_corpus(), tmp_path / "run")
        about, tensors = read_tensors(tmp_path / "run" / LAST)
        assert about["progress"]["step"] == 8
        assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())

    def test_a_full_disk_costs_neither_the_last_checkpoint_nor_the_way_on(self, tmp_path: Path) -> None:
        """Files may grow to two thirds of a checkpoint: the next one cannot be written."""

        def cut(report: Report[Stepped, Validated]) -> None:
            if report.event.step == 9:
                raise KeyboardInterrupt

        corpus, folder = small_corpus(), tmp_path / "run"
        with pytest.raises(KeyboardInterrupt):
            pretrain(config(), corpus, folder, report=cut)
        good = (folder / LAST).read_bytes()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * len(good) // 3, before[1]))
        try:
            with pytest.raises(ElmoError, match=r"cannot write .*last good checkpoint is of step 8"):
                pretrain(config(), corpus, folder, resume=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, old)
        assert (folder / LAST).read_bytes() == good
        assert not list(folder.glob(".*new*"))
        pretrain(config(), corpus, folder, resume=True)
        pretrain(config(), corpus, tmp_path / "whole")
        for name in (LAST, METRICS):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model__lstm__dim": 16}, r"another architecture: a run with model\.lstm\.dim = 12, the config says 16"),
            ({"optimizer__rate": 0.1}, r"optimizer\.rate = 0\.2, the config says 0\.1"),
            ({"seed": 4}, "seed = 0, the config says 4"),
        ],
    )
    def test_a_checkpoint_of_another_run_is_refused(
        self, tmp_path: Path, changes: dict[str, Any], message: str
    ) -> None:
        pretrain(config(train__steps=2), small_corpus(), tmp_path)
        with pytest.raises(ElmoError, match=message):
            pretrain(config(**changes), small_corpus(), tmp_path, resume=True)

    def test_a_checkpoint_of_another_corpus_is_refused(self, tmp_path: Path) -> None:
        pretrain(config(train__steps=2), small_corpus(), tmp_path)
        other = small_corpus()
        other.digest = "other"
        with pytest.raises(ElmoError, match="another corpus"):
            pretrain(config(), other, tmp_path, resume=True)

    def test_a_damaged_checkpoint_is_refused(self, tmp_path: Path) -> None:
        pretrain(config(train__steps=2), small_corpus(), tmp_path)
        whole = (tmp_path / LAST).read_bytes()
        (tmp_path / LAST).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ElmoError, match="not a whole checkpoint"):
            pretrain(config(), small_corpus(), tmp_path, resume=True)

    def test_what_a_killed_run_was_writing_is_cleared_away(self, tmp_path: Path) -> None:
        pretrain(config(train__steps=2), small_corpus(), tmp_path)
        names = sorted(path.name for path in tmp_path.iterdir())
        for name in (".config.json.new-17", ".last.safetensors.new-17", ".tmpaBc123"):
            (tmp_path / name).touch()
        (tmp_path / ".model.new-17").mkdir()
        pretrain(config(train__steps=2), small_corpus(), tmp_path, resume=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == names

    def test_a_run_is_not_overwritten(self, tmp_path: Path) -> None:
        pretrain(config(train__steps=2), small_corpus(), tmp_path)
        with pytest.raises(ElmoError, match="--resume goes on with it"):
            pretrain(config(), small_corpus(), tmp_path)


class TestRun:
    def test_writes_metrics_at_their_steps(self, tmp_path: Path) -> None:
        pretrain(config(), small_corpus(), tmp_path)
        trained = [line["step"] for line in lines(tmp_path) if "loss" in line]
        validated = [line for line in lines(tmp_path) if "valid_loss" in line]
        assert trained == [5, 10, 15, 20, 24]
        assert [line["step"] for line in validated] == [8, 16, 24]
        for line in validated:
            assert line["valid_perplexity"] == pytest.approx(
                math.sqrt(line["valid_perplexity_forward"] * line["valid_perplexity_backward"])
            )

    def test_a_line_of_metrics_is_the_mean_since_the_one_before(self, tmp_path: Path) -> None:
        pretrain(config(), small_corpus(), tmp_path)
        every = losses(training(), 10)
        found = [line["loss"] for line in lines(tmp_path) if "loss" in line]
        assert found[:2] == pytest.approx([sum(every[:5]) / 5, sum(every[5:]) / 5])

    @pytest.mark.parametrize("kind", ["sampled", "adaptive"])
    def test_the_best_model_is_exported_with_its_head(self, tmp_path: Path, kind: str) -> None:
        corpus = small_corpus()
        cutoffs = [8] if kind == "adaptive" else []
        progress = pretrain(config(softmax__kind=kind, softmax__cutoffs=cutoffs), corpus, tmp_path)
        model = elmo.load(tmp_path / MODEL)
        about, best = read_tensors(tmp_path / BEST)
        assert about["step"] == progress.best_step
        assert isinstance(model.head, AdaptiveHead if kind == "adaptive" else SoftmaxHead)
        for name, weight in model.head.state_dict().items():
            assert torch.equal(weight, best[f"lm.head.{name}"])
        for name, weight in model.bilm.state_dict().items():
            assert torch.equal(weight, best[f"lm.bilm.{name}"])
        assert model.vocab is not None
        assert model.vocab.words == corpus.vocab.words
        assert model.card is not None
        assert f"step {progress.best_step}" in model.card
        assert model.embed(["the cat sees the dog"])[0].shape == (5, 10)

    def test_stops_when_it_gets_no_better(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Training, "validate", lambda self: Validated(self.step, 1.0 + self.step, 1.0, 10))
        progress = pretrain(config(train__validate_every=2, train__patience=3), small_corpus(), tmp_path)
        assert progress.step == 8  # the first validation was the best, three came after it
        assert progress.best_step == 2
        again = pretrain(config(train__validate_every=2, train__patience=3), small_corpus(), tmp_path, resume=True)
        assert again == progress

    def test_reports_every_step_and_validation(self, tmp_path: Path) -> None:
        reports: list[Report[Stepped, Validated]] = []
        pretrain(config(), small_corpus(), tmp_path, report=reports.append)
        assert [r.event.step for r in reports if isinstance(r.event, Stepped)] == list(range(1, 25))
        assert reports[-1].units == 24 * 4 * 6
        assert all(r.mean is not None and math.isfinite(r.mean.loss) for r in reports)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    @pytest.mark.parametrize("step", [5, 8])  # one of them is validated
    def test_a_run_that_is_told_to_stop_saves_its_step_first(self, tmp_path: Path, number: int, step: int) -> None:
        def tell(report: Report[Stepped, Validated]) -> None:
            if report.event.step == step and isinstance(report.event, Stepped):
                signal.raise_signal(number)

        handlers = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
        with pytest.raises(KeyboardInterrupt):
            pretrain(config(), small_corpus(), tmp_path / "cut", report=tell)
        assert handlers == [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
        done = []
        pretrain(config(), small_corpus(), tmp_path / "cut", resume=True, report=lambda r: done.append(r.event.step))
        assert done[0] == step + 1
        pretrain(config(), small_corpus(), tmp_path / "whole")
        for name in (LAST, BEST, METRICS):
            assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    def test_a_second_run_in_the_folder_is_kept_out(self, tmp_path: Path) -> None:
        def start_another(report: Report[Stepped, Validated]) -> None:
            with pytest.raises(ElmoError, match="another run is going on"):
                pretrain(config(), small_corpus(), tmp_path, resume=True)
            seen.append(report)

        seen: list[Report[Stepped, Validated]] = []
        pretrain(config(train__steps=1), small_corpus(), tmp_path, report=start_another)
        assert seen

    def test_tensorboard_without_its_package_says_how_to_get_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, "tensorboard", None)
        with pytest.raises(ElmoError, match=r"pip install 'elmo\[tensorboard\]'"):
            pretrain(config(train__tensorboard=True), small_corpus(), tmp_path)


def test_a_loss_beyond_all_perplexities_is_an_infinite_one() -> None:
    found = Validated(8, forward=800.0, backward=3.0, positions=10)
    assert found.line()["valid_perplexity_forward"] == math.inf
    assert found.line()["valid_perplexity_backward"] == pytest.approx(math.exp(3))
    assert Validated.of_line(found.line()) == found


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("kind", ["sampled", "full"])
def test_losses_are_the_same_on_a_gpu(kind: str) -> None:
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    settings = config(softmax__kind=kind, train__dropout=0.0)
    runs = [Training(settings, small_corpus(), Ranks(device=torch.device(device))) for device in ("cpu", "cuda")]
    ours, theirs = (losses(some, 20) for some in runs)
    np.testing.assert_allclose(theirs, ours, atol=1e-4)


class TestHeadInTheNativeFormat:
    def test_a_head_without_its_words_is_refused(self, model_folder: Path) -> None:
        bilm = elmo.load(model_folder).bilm
        head = SoftmaxHead(7, bilm.config.lstm.projection_dim)
        with pytest.raises(ElmoError, match="the head predicts 7 words, none is given"):
            elmo.Model.of(bilm, head=head)
        words = elmo.Vocabulary(["<S>", "</S>", "<UNK>", "the"])
        with pytest.raises(ElmoError, match="the head predicts 7 words, the vocabulary has 4"):
            elmo.Model.of(bilm, head=head, vocab=words)

    @pytest.mark.parametrize(
        "head", [None, 5, {}, {"n_words": 0}, {"n_words": "7"}, {"n_words": 4, "cutoffs": "x"}, {"n_words": 5}]
    )
    def test_a_head_that_is_not_what_its_options_say_is_refused(
        self, tmp_path: Path, model_folder: Path, head: object
    ) -> None:
        words = elmo.Vocabulary(["<S>", "</S>", "<UNK>", "the"])
        bilm = elmo.load(model_folder).bilm
        dim = bilm.config.lstm.projection_dim
        elmo.save(elmo.Model.of(bilm, head=SoftmaxHead(4, dim), vocab=words), tmp_path / "with_head")
        assert elmo.load(tmp_path / "with_head").head is not None
        path = tmp_path / "with_head" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"head": head}))
        with pytest.raises(ElmoError, match=r"head"):
            elmo.load(tmp_path / "with_head")
