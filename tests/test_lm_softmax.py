from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from elmo.errors import ElmoError
from elmo.lm import softmax
from elmo.lm.softmax import (
    PADDING,
    AdaptiveHead,
    Samples,
    SoftmaxHead,
    log_expected_count,
    log_uniform_samples,
    sampled_losses,
    take_rows,
)

FIGURES = json.loads((Path(__file__).parent / "data" / "sampled_softmax.json").read_text())


def tries_of(case: dict[str, Any]) -> int:
    """TensorFlow does not say how many draws it took, but its expected counts do."""
    k, expected = case["samples"][0], case["expected_sampled"][0]
    probability = math.log((k + 2) / (k + 1)) / math.log(len(case["bias"]) + 1)
    return round(math.log1p(-expected) / math.log1p(-probability))


class TestSampled:
    @pytest.mark.parametrize("case", FIGURES["cases"])
    def test_equals_tensorflow_s_with_the_same_samples(self, case: dict[str, Any]) -> None:
        head = SoftmaxHead(len(case["bias"]), len(case["weight"][0]))
        head.load_state_dict({"weight": torch.tensor(case["weight"]), "bias": torch.tensor(case["bias"])})
        h, targets = torch.tensor(case["h"], requires_grad=True), torch.tensor(case["targets"])
        samples = Samples(torch.tensor(case["samples"]).sort().values, tries_of(case))
        assert set(case["samples"]) & set(case["targets"]), "no accidental hit would be tested"
        rows = take_rows(head, [samples.ids, targets])
        losses = sampled_losses(rows, head.n_words, h, targets, samples)
        torch.autograd.backward(losses.mean())
        np.testing.assert_allclose(losses.detach(), case["losses"], atol=1e-5)
        assert h.grad is not None
        assert rows.weight.grad is not None
        assert rows.bias.grad is not None
        np.testing.assert_allclose(h.grad, case["gradient_of_h"], atol=1e-5)
        whole = torch.zeros_like(head.weight).index_copy(0, rows.ids, rows.weight.grad)
        np.testing.assert_allclose(whole, case["gradient_of_weight"], atol=1e-5)
        np.testing.assert_allclose(
            torch.zeros_like(head.bias).index_copy(0, rows.ids, rows.bias.grad), case["gradient_of_bias"], atol=1e-5
        )

    @pytest.mark.parametrize("case", FIGURES["cases"])
    def test_expected_counts_are_tensorflow_s(self, case: dict[str, Any]) -> None:
        for ids, expected in (("targets", "expected_true"), ("samples", "expected_sampled")):
            ours = log_expected_count(torch.tensor(case[ids]), len(case["bias"]), tries_of(case)).exp()
            np.testing.assert_allclose(ours, case[expected], rtol=1e-5)

    def test_frequencies_pass_a_chi_square_test(self) -> None:
        """One word a draw, so that each draw is free of the others: 40,000 of them, 199 degrees of freedom."""
        n_words, draws = 200, 40_000
        rng = np.random.default_rng(1)
        counts = np.bincount([int(log_uniform_samples(1, n_words, rng).ids) for _ in range(draws)], minlength=n_words)
        k = np.arange(n_words)
        expected = draws * np.log((k + 2) / (k + 1)) / np.log(n_words + 1)
        assert expected.sum() == pytest.approx(draws)
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert 138.0 < chi_square < 278.0  # the 0.01 % and 99.99 % quantiles of chi-square with 199 degrees of freedom

    def test_unique_draws_find_words_as_often_as_is_expected(self) -> None:
        """Inclusion of a word, summed over sets of their own number of tries, against the corrections' sum."""
        n_words, n_samples, sets = 60, 20, 3000
        rng = np.random.default_rng(2)
        found, expected = np.zeros(n_words), np.zeros(n_words)
        for _ in range(sets):
            drawn = log_uniform_samples(n_samples, n_words, rng)
            found[drawn.ids] += 1
            expected += log_expected_count(torch.arange(n_words), n_words, drawn.tries).exp().numpy()
        assert found.sum() == n_samples * sets
        np.testing.assert_allclose(found, expected, atol=5 * math.sqrt(sets) / 2, rtol=0.02)

    def test_samples_are_distinct_words_of_the_vocabulary(self) -> None:
        for n_samples, n_words in ((1, 2), (49, 50), (8192, 800_000)):
            drawn = log_uniform_samples(n_samples, n_words, np.random.default_rng(3))
            assert len(drawn.ids) == n_samples == len(torch.unique(drawn.ids))
            assert 0 <= int(drawn.ids.min()) <= int(drawn.ids.max()) < n_words
            assert drawn.tries >= n_samples

    @pytest.mark.parametrize("n_samples", [0, 10, 11])
    def test_more_samples_than_words_are_refused(self, n_samples: int) -> None:
        with pytest.raises(ElmoError, match="fewer samples than words"):
            log_uniform_samples(n_samples, 10, np.random.default_rng(0))

    def test_a_set_that_is_all_hit_costs_nothing_and_breaks_nothing(self) -> None:
        head = SoftmaxHead(5, 3)
        h = torch.randn(2, 3, requires_grad=True)
        only = Samples(torch.tensor([2]), 1)
        rows = take_rows(head, [only.ids])
        losses = sampled_losses(rows, 5, h, torch.tensor([2, 2]), only)
        torch.autograd.backward(losses.sum())
        assert losses.tolist() == [0, 0]
        assert h.grad is not None
        assert not h.grad.any()

    def test_rows_of_a_step_are_few_whatever_the_vocabulary(self) -> None:
        head = SoftmaxHead(300_000, 2)
        drawn = log_uniform_samples(100, 300_000, np.random.default_rng(0))
        rows = take_rows(head, [drawn.ids, torch.tensor([[5, 299_999], [5, 7]])])
        assert len(rows.ids) <= 103
        assert rows.weight.is_leaf
        assert torch.equal(rows.weight.detach(), head.weight.detach()[rows.ids])


class TestFull:
    def test_is_the_cross_entropy_over_all_words(self) -> None:
        head, h, targets = SoftmaxHead(11, 4), torch.randn(7, 4), torch.randint(11, (7,))
        expected = -torch.log_softmax(h @ head.weight.T + head.bias, dim=1)[torch.arange(7), targets]
        torch.testing.assert_close(head(h, targets), expected)
        torch.testing.assert_close(-head.log_probs(h)[torch.arange(7), targets], expected)

    def test_in_pieces_it_is_the_same_with_the_same_gradients(self, monkeypatch: pytest.MonkeyPatch) -> None:
        head, targets = SoftmaxHead(11, 4), torch.randint(11, (7,))
        h = torch.randn(7, 4, requires_grad=True)

        def results() -> list[Tensor]:
            losses = head(h, targets)
            return [losses.detach(), *torch.autograd.grad(losses.sum(), [h, head.weight, head.bias])]

        whole = results()
        monkeypatch.setattr(softmax, "_LOGITS_AT_ONCE", 22)
        for piece, expected in zip(results(), whole, strict=True):
            torch.testing.assert_close(piece, expected)

    def test_all_logits_are_never_there_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        head = SoftmaxHead(11, 4)
        monkeypatch.setattr(softmax, "_LOGITS_AT_ONCE", 22)
        shapes: list[int] = []
        inner = F.cross_entropy

        def watched(logits: Tensor, *arguments: Any, **more: Any) -> Tensor:
            shapes.append(logits.numel())
            return inner(logits, *arguments, **more)

        monkeypatch.setattr(F, "cross_entropy", watched)
        with torch.no_grad():
            head(torch.randn(7, 4), torch.randint(11, (7,)))
        assert shapes == [22, 22, 22, 11]

    def test_start_values_are_bilm_tf_s(self) -> None:
        torch.manual_seed(0)
        head = SoftmaxHead(2000, 64)
        assert float(head.weight.detach().std()) == pytest.approx(1 / 8, rel=0.01)
        assert not head.bias.any()


class TestAdaptive:
    def test_probabilities_sum_to_one_and_the_loss_is_theirs(self) -> None:
        head, h, targets = AdaptiveHead(20, 16, [4, 10]), torch.randn(6, 16), torch.tensor([0, 3, 4, 9, 10, 19])
        logs = head.log_probs(h)
        torch.testing.assert_close(logs.exp().sum(dim=1), torch.ones(6))
        torch.testing.assert_close(head(h, targets), -logs[torch.arange(6), targets])

    @pytest.mark.parametrize("cutoffs", [[], [5, 5], [5, 3], [0, 3], [20], [3, 6]])
    def test_cutoffs_that_are_none_are_refused(self, cutoffs: list[int]) -> None:
        with pytest.raises(ElmoError, match=r"softmax\.cutoffs"):
            AdaptiveHead(20, 8, cutoffs)


@pytest.mark.parametrize("head", [SoftmaxHead(20, 8), AdaptiveHead(20, 8, [4])], ids=["full", "adaptive"])
def test_padding_costs_nothing(head: softmax.Head) -> None:
    losses = head(torch.randn(3, 8), torch.tensor([PADDING, 5, PADDING]))
    assert losses[0] == losses[2] == 0
    assert losses[1] > 0
