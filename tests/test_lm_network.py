"""The language model against an independent one in float64: losses, states and every gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lm_reference64 as reference
from conftest import small_options
from elmo.chars import words_to_ids
from elmo.config import ModelConfig
from elmo.lm.layer import run_layer
from elmo.lm.network import Dropout, LanguageModel, Sampling, Window
from elmo.lm.softmax import Samples, SoftmaxHead, log_uniform_samples, take_rows
from elmo.lstm import ProjectedLSTM
from elmo.model import BiLM, State

WORDS = ["<S>", "</S>", "the", "cat", "sat", "é", "a-rather-long-word-of-the-test", ""]
V = 30
STEPS = 4


def language_model(options: dict[str, Any], dtype: torch.dtype = torch.float64, seed: int = 0) -> LanguageModel:
    """A small model whose every weight is far from zero: start values would leave clips and biases untouched.

    In float32 they are smaller, since with large ones rounding alone comes near the 1e-6 that is asked for.
    """
    config = ModelConfig.from_options(options)
    lm = LanguageModel(BiLM(config), SoftmaxHead(V, config.lstm.projection_dim))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in lm.named_parameters():
            weight.normal_(std=0.6 if dtype == torch.float64 else 0.2, generator=generator)
            if name == "bilm.encoder.characters.weight":
                weight[0] = 0
    return lm.to(dtype)


def window(rows: int = 3, steps: int = STEPS, seed: int = 0) -> Window:
    generator = torch.Generator().manual_seed(seed)
    words = torch.from_numpy(words_to_ids(WORDS, 50)).long()
    inputs = torch.randint(len(WORDS), (2, rows, steps), generator=generator)
    return Window(words, inputs, torch.randint(V, (2, rows, steps), generator=generator))


def drawn_state(lm: LanguageModel, rows: int = 3) -> State:
    zero = lm.bilm.zero_state(rows)
    generator = torch.Generator().manual_seed(5)
    return State(*(torch.empty_like(part).uniform_(-1, 1, generator=generator) for part in (zero.m, zero.c)))


def samples_of_both() -> tuple[Samples, Samples]:
    """Some of the targets of `window` are among them, so that accidental hits happen."""
    return Samples(torch.tensor([0, 1, 3, 7, 12, 20]), 9), Samples(torch.tensor([0, 2, 3, 5, 16, 29]), 11)


def reference_losses(
    lm: LanguageModel, options: dict[str, Any], seen: Window, state: State, *, sampled: bool, masks: list[Tensor] | None
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    bilm, head = (reference.leaves(dict(part.named_parameters())) for part in (lm.bilm, lm.head))
    tops, m, c = reference.top_layer(
        bilm, options, seen.words.tolist(), seen.inputs.tolist(), state.m.double(), state.c.double(), masks
    )
    losses = []
    for direction, samples in enumerate(samples_of_both()):
        total = torch.zeros((), dtype=torch.float64)
        for row, targets in enumerate(seen.targets[direction].tolist()):
            for t, target in enumerate(targets):
                table = head["weight"], head["bias"], tops[direction, row, t], target
                more = (samples.ids.tolist(), samples.tries)
                total = total + (reference.sampled_loss(*table, *more) if sampled else reference.full_loss(*table))
        losses.append(total / seen.targets[direction].numel())
    named = {f"bilm.{name}": w for name, w in bilm.items()} | {f"head.{name}": w for name, w in head.items()}
    return torch.stack(losses), m, c, named


def dropout_masks(seen: Window, lm: LanguageModel, rate: float) -> tuple[Dropout, list[Tensor]]:
    """A dropout, and what it is going to multiply each layer's input and the top with."""
    _, rows, steps = seen.inputs.shape
    ones = torch.ones(2, steps, rows, lm.config.lstm.projection_dim, dtype=torch.float64)
    again = Dropout(rate, torch.Generator().manual_seed(9))
    masks = [again(ones) for _ in range(lm.config.lstm.n_layers + 1)]
    return Dropout(rate, torch.Generator().manual_seed(9)), masks


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(
    "lstm",
    [
        {},
        {"cell_clip": 0.3, "proj_clip": 0.4},
        {"cell_clip": None, "proj_clip": None, "use_skip_connections": False},
        {"projection_dim": 12},
        {"n_layers": 1},
    ],
    ids=["plain", "clips at work", "no clips", "no projection", "one layer"],
)
def test_loss_state_and_every_gradient_equal_a_float64_reference(
    lstm: dict[str, Any], sampled: bool, dtype: torch.dtype
) -> None:
    options = small_options(**lstm)
    lm, seen = language_model(options, dtype), window()
    state = State(*(part.to(dtype) for part in (drawn_state(lm).m, drawn_state(lm).c)))
    dropout, masks = dropout_masks(seen, lm, 0.4)
    sampling = None
    if sampled:
        assert isinstance(lm.head, SoftmaxHead)
        sampling = Sampling(take_rows(lm.head, [*(s.ids for s in samples_of_both()), seen.targets]), samples_of_both())
    positions, after = lm(seen, state, dropout=dropout, sampling=sampling)
    losses = positions.mean(dim=1)
    torch.autograd.backward(0.5 * losses.sum() * STEPS)
    expected, m, c, weights = reference_losses(lm, options, seen, state, sampled=sampled, masks=masks)
    torch.autograd.backward(0.5 * expected.sum() * STEPS)

    exact = 1e-10 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(losses.double(), expected, atol=exact, rtol=exact)
    torch.testing.assert_close(after.m.double(), m, atol=exact, rtol=exact)
    torch.testing.assert_close(after.c.double(), c, atol=exact, rtol=exact)
    found = {name: w.grad for name, w in lm.named_parameters()}
    if sampling is not None:
        for name, part in (("weight", sampling.rows.weight), ("bias", sampling.rows.bias)):
            whole = torch.zeros_like(lm.get_parameter(f"head.{name}"))
            assert part.grad is not None
            found[f"head.{name}"] = whole.index_copy(0, sampling.rows.ids, part.grad)
    for name, weight in weights.items():
        want, got = weight.grad, found[name]
        assert want is not None
        assert got is not None, name
        if name == "bilm.encoder.characters.weight":
            want = want.index_fill(0, torch.tensor([0]), 0)  # the mask's row is no weight
        assert want.abs().max() > 0, name
        scale = max(1.0, float(want.abs().max()))
        torch.testing.assert_close(got.double(), want, atol=exact * scale, rtol=0)


@settings(max_examples=30)
@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from([0, 1, 7]),
    st.one_of(st.none(), st.floats(0.05, 1)),
    st.one_of(st.none(), st.floats(0.05, 1)),
    st.integers(0, 2**31),
)
def test_the_layer_for_training_is_the_reference_layer(
    rows: int, steps: int, width: int, wider: int, cell_clip: float | None, proj_clip: float | None, seed: int
) -> None:
    torch.manual_seed(seed)
    config = ModelConfig.from_options(
        {
            "lstm": {"dim": width + wider, "projection_dim": width, "cell_clip": cell_clip, "proj_clip": proj_clip},
            "n_tokens_vocab": 9,
        }
    ).lstm
    lstms = [ProjectedLSTM(config).double() for _ in range(2)]
    x = torch.randn(2, steps, rows, width, dtype=torch.float64, requires_grad=True)
    m = torch.randn(2, rows, width, dtype=torch.float64)
    c = torch.randn(2, rows, width + wider, dtype=torch.float64)
    y, new_m, new_c = run_layer(lstms[0], lstms[1], x, m, c, torch.float64)
    weights = torch.randn_like(y)
    torch.autograd.backward((y * weights).sum())
    found = [x.grad, *(w.grad for lstm in lstms for w in lstm.parameters())]
    again = x.detach().clone().requires_grad_()
    for lstm in lstms:
        lstm.zero_grad()
    whole = torch.full((rows,), steps)
    for d, lstm in enumerate(lstms):
        out, last_m, last_c = lstm(again[d].transpose(0, 1), whole, m[d], c[d])
        torch.testing.assert_close(y[d].detach(), out.detach().transpose(0, 1))
        torch.testing.assert_close(new_m[d], last_m.detach())
        torch.testing.assert_close(new_c[d], last_c.detach())
        torch.autograd.backward((out.transpose(0, 1) * weights[d]).sum())
    expected = [again.grad, *(w.grad for lstm in lstms for w in lstm.parameters())]
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want)


class TestNetwork:
    def test_two_windows_are_one_long_window(self) -> None:
        lm, whole = language_model(small_options()), window(steps=6)
        state = drawn_state(lm)
        together, end = lm(whole, state)
        first, between = lm(Window(whole.words, whole.inputs[..., :2], whole.targets[..., :2]), state)
        second, after = lm(Window(whole.words, whole.inputs[..., 2:], whole.targets[..., 2:]), between)
        torch.testing.assert_close(torch.cat([first, second], dim=1), together)
        torch.testing.assert_close(after.c, end.c)
        assert not between.m.requires_grad

    def test_rows_do_not_meet(self) -> None:
        lm, seen = language_model(small_options()), window()
        state = drawn_state(lm)
        together = lm(seen, state)[0].view(2, STEPS, 3)
        for row in range(3):
            alone, _ = lm(seen.rows(row, row + 1), state.rows_at([row]))
            torch.testing.assert_close(alone, together[:, :, row])

    def test_a_direction_has_no_part_in_the_other(self) -> None:
        lm, seen = language_model(small_options()), window()
        changed = Window(seen.words, torch.stack([seen.inputs[0], seen.inputs[0]]), seen.targets)
        state = drawn_state(lm)
        assert torch.equal(lm(seen, state)[0][0], lm(changed, state)[0][0])
        assert not torch.equal(lm(seen, state)[0][1], lm(changed, state)[0][1])

    def test_its_forward_layer_is_the_bilm_s(self) -> None:
        lm, seen = language_model(small_options()), window()
        top, _ = lm.contextualise(seen, lm.bilm.zero_state(3))
        layers = lm.bilm(seen.words[seen.inputs[0]]).layers
        torch.testing.assert_close(top[0].transpose(0, 1), layers[-1, ..., :5])

    def test_words_of_a_batch_are_encoded_as_they_are_alone(self) -> None:
        lm = language_model(small_options())
        texts = ["a" * n for n in range(60)] * 5 + WORDS
        words = torch.from_numpy(words_to_ids(texts)).long()
        torch.testing.assert_close(lm.encode(words), lm.bilm.encoder(words))

    def test_dropout_drops_its_share_and_keeps_the_mean(self) -> None:
        dropped = Dropout(0.1, torch.Generator().manual_seed(0))(torch.ones(100_000))
        assert abs(float((dropped == 0).float().mean()) - 0.1) < 0.005
        assert abs(float(dropped.mean()) - 1) < 0.01

    def test_dropout_is_the_same_from_the_same_seed_and_other_from_another(self) -> None:
        first, same, other = (Dropout(0.5, torch.Generator().manual_seed(s))(torch.ones(50)) for s in (1, 1, 2))
        assert torch.equal(first, same)
        assert not torch.equal(first, other)

    @pytest.mark.parametrize("sampled", [False, True])
    def test_bf16_is_near(self, sampled: bool) -> None:
        lm, seen = language_model(small_options(), torch.float32), window()
        assert isinstance(lm.head, SoftmaxHead)
        sampling = None
        if sampled:
            drawn = log_uniform_samples(8, V, np.random.default_rng(0))
            sampling = Sampling(take_rows(lm.head, [drawn.ids, seen.targets]), (drawn, drawn))
        state = lm.bilm.zero_state(3)
        exact, _ = lm(seen, state, sampling=sampling)
        low, after = lm(seen, state, sampling=sampling, bf16=True)
        assert low.dtype == after.c.dtype == torch.float32
        assert 0 < float((low - exact).abs().max().detach()) < 0.02
        torch.autograd.backward(low.sum())
        gradients = [w.grad for name, w in lm.named_parameters() if not (sampled and name.startswith("head"))]
        assert all(g is not None and g.dtype == torch.float32 and bool(g.isfinite().all()) for g in gradients)
