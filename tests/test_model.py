from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import elmo
from conftest import small_options, weight_shapes, write_model
from elmo.config import ModelConfig
from elmo.lstm import ProjectedLSTM, reverse
from elmo.model import BiLM, Elmo, ScalarMix, parameter_count
from reference64 import Reference

SENTENCES = [["the", "cat", "sat"], ["a"], [], ["on", "the", "mat", ",", "purring"]]


@pytest.fixture
def model(model_folder: Path) -> elmo.Model:
    return elmo.load(model_folder)


def ids_with_boundaries(model: elmo.Model, sentences: list[list[str]]) -> Tensor:
    return model.bilm.with_boundaries(model.batch_to_ids(sentences))


class TestBiLM:
    def test_runs_over_the_rows_it_is_given_and_masks_the_rest(self, model: elmo.Model) -> None:
        output = model.bilm(ids_with_boundaries(model, SENTENCES))
        assert output.layers.shape == (3, 4, 7, 10)
        assert output.mask.sum(dim=1).tolist() == [5, 3, 2, 7]
        assert not output.layers[:, ~output.mask].any()

    def test_word_layer_is_the_word_vector_twice(self, model: elmo.Model) -> None:
        layer = model.bilm(ids_with_boundaries(model, SENTENCES)).layers[0]
        assert torch.equal(layer[..., :5], layer[..., 5:])

    @pytest.mark.parametrize("layers", [[0], [1], [2], [0, 2], [2, 0], [1, 1]])
    def test_layers_asked_for_are_those_of_the_whole_run(self, model: elmo.Model, layers: list[int]) -> None:
        ids = ids_with_boundaries(model, SENTENCES)
        assert torch.equal(model.bilm(ids, layers=layers).layers, model.bilm(ids).layers[layers])

    def test_layers_above_those_asked_for_are_not_computed(
        self, model: elmo.Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[int] = []
        forward = ProjectedLSTM.forward

        def counted(self: ProjectedLSTM, *arguments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            calls.append(id(self))
            return forward(self, *arguments)

        monkeypatch.setattr(ProjectedLSTM, "forward", counted)
        model.bilm(ids_with_boundaries(model, SENTENCES), layers=[0])
        assert calls == []
        model.bilm(ids_with_boundaries(model, SENTENCES), layers=[1])
        assert len(calls) == 2

    @pytest.mark.parametrize("layers", [[], [3], [-1]])
    def test_layers_that_it_lacks_are_refused(self, model: elmo.Model, layers: list[int]) -> None:
        with pytest.raises(elmo.ElmoError, match="0 to 2"):
            model.bilm(ids_with_boundaries(model, SENTENCES), layers=layers)

    def test_state_continues_a_sentence_in_the_forward_direction(self, model: elmo.Model) -> None:
        ids = ids_with_boundaries(model, SENTENCES[:1])
        whole = model.bilm(ids).layers[:, 0]
        first = model.bilm(ids[:, :2])
        second = model.bilm(ids[:, 2:], first.state).layers[:, 0]
        half = model.config.lstm.projection_dim
        np.testing.assert_allclose(second[..., :half].detach(), whole[:, 2:, :half].detach(), atol=1e-6)

    def test_a_padded_row_leaves_the_state_of_its_own_end(self, model: elmo.Model) -> None:
        together = model.bilm(ids_with_boundaries(model, SENTENCES)).state
        for row, sentence in enumerate(SENTENCES):
            alone = model.bilm(ids_with_boundaries(model, [sentence])).state
            torch.testing.assert_close(together.m[:, :, row], alone.m[:, :, 0], atol=1e-6, rtol=0)
            torch.testing.assert_close(together.c[:, :, row], alone.c[:, :, 0], atol=1e-6, rtol=0)

    def test_calling_it_changes_nothing_in_it(self, model: elmo.Model) -> None:
        before = {name: value.clone() for name, value in model.bilm.state_dict().items()}
        first = model.bilm(ids_with_boundaries(model, SENTENCES)).layers
        assert torch.equal(first, model.bilm(ids_with_boundaries(model, SENTENCES)).layers)
        assert all(torch.equal(value, before[name]) for name, value in model.bilm.state_dict().items())

    def test_no_sentence_and_no_token_are_legal(self, model: elmo.Model) -> None:
        assert model.bilm(torch.zeros(0, 4, 50, dtype=torch.int32)).layers.shape == (3, 0, 4, 10)
        assert model.bilm(torch.zeros(2, 0, 50, dtype=torch.int32)).layers.shape == (3, 2, 0, 10)

    @pytest.mark.parametrize(
        ("dim", "projection", "highways", "parameters"),
        [(1024, 128, 1, 13_593_296), (2048, 256, 1, 28_027_728), (4096, 512, 2, 93_600_848)],
    )
    def test_published_sizes_have_the_published_number_of_parameters(
        self, dim: int, projection: int, highways: int, parameters: int
    ) -> None:
        options = small_options(dim=dim, projection_dim=projection)
        options["char_cnn"] |= {
            "embedding": {"dim": 16},
            "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
            "n_highway": highways,
        }
        assert parameter_count(ModelConfig.from_options(options)) == parameters

    def test_start_values_are_those_of_bilm_tf(self) -> None:
        torch.manual_seed(0)
        options = small_options(dim=200, projection_dim=100)
        options["char_cnn"]["filters"] = [[3, 300]]
        bilm = BiLM(ModelConfig.from_options(options))
        weights = {name: value.detach() for name, value in bilm.named_parameters()}
        characters = weights["encoder.characters.weight"]
        assert not characters[0].any()
        assert characters[1:].abs().max() <= 1
        assert weights["encoder.convolutions.0.weight"].abs().max() <= 0.05
        assert weights["encoder.highways.0.carry.bias"].eq(-2).all()
        assert weights["encoder.projection.weight"].std().item() == pytest.approx(300**-0.5, rel=0.05)
        kernel = weights["forwards.0.kernel"]
        assert kernel.abs().max().item() == pytest.approx((6 / (200 + 800)) ** 0.5, rel=0.01)
        assert not weights["forwards.0.bias"].any()


class TestLSTM:
    @given(st.integers(1, 4), st.integers(1, 30), st.integers(1, 7))
    def test_computing_gates_ahead_in_pieces_changes_nothing(self, rows: int, steps: int, ahead: int) -> None:
        torch.manual_seed(rows * steps)
        lstm = ProjectedLSTM(ModelConfig.from_options(small_options()).lstm)
        x, lengths = torch.randn(rows, steps, 5), torch.randint(0, steps + 1, (rows,))
        start = (torch.randn(rows, 5), torch.randn(rows, 12))
        whole = lstm(x, lengths, *start)
        lstm._steps_ahead = lambda rows: ahead  # type: ignore[method-assign]
        for ours, theirs in zip(lstm(x, lengths, *start), whole, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)

    @given(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    def test_reversing_twice_is_nothing(self, lengths: list[int]) -> None:
        x = torch.randn(len(lengths), 6, 3)
        once = reverse(x, torch.tensor(lengths))
        for row, length in enumerate(lengths):
            assert torch.equal(once[row, :length], x[row, :length].flip(0))
        assert torch.equal(reverse(once, torch.tensor(lengths)), x)

    def test_gradients_are_those_of_finite_differences(self) -> None:
        torch.manual_seed(1)
        lstm = ProjectedLSTM(ModelConfig.from_options(small_options(dim=4, projection_dim=3)).lstm).double()
        x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
        start = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
        lengths = torch.tensor([4, 2])
        assert torch.autograd.gradcheck(lambda x, *_: lstm(x, lengths, *start), (x, *lstm.parameters()))


class TestScalarMix:
    def test_starts_as_the_average(self) -> None:
        layers = torch.randn(3, 2, 4, 6)
        torch.testing.assert_close(ScalarMix(3)(layers), layers.mean(dim=0))

    def test_is_gamma_times_the_softmax_weighted_sum(self) -> None:
        mix = ScalarMix(3)
        with torch.no_grad():
            mix.weights.copy_(torch.tensor([0.5, -1.0, 2.0]))
            mix.gamma.fill_(0.3)
        layers = torch.randn(3, 2, 4, 6)
        shares = np.exp([0.5, -1, 2]) / np.exp([0.5, -1, 2]).sum()
        expected = 0.3 * sum(share * layer for share, layer in zip(shares, layers.numpy(), strict=True))
        np.testing.assert_allclose(mix(list(layers)).detach(), expected, atol=1e-6)

    def test_penalty_is_lambda_times_the_squared_weights_and_pulls_to_the_average(self) -> None:
        mix = ScalarMix(2)
        with torch.no_grad():
            mix.weights.copy_(torch.tensor([3.0, -4.0]))
        penalty = mix.penalty(0.1)
        assert penalty.item() == pytest.approx(2.5)
        penalty.backward()  # type: ignore[no-untyped-call]
        assert mix.weights.grad is not None
        torch.testing.assert_close(mix.weights.grad, torch.tensor([0.6, -0.8]))

    def test_layer_norm_counts_only_unmasked_tokens(self) -> None:
        layers = torch.randn(2, 2, 3, 4, dtype=torch.float64)
        mask = torch.tensor([[True, True, False], [True, False, False]])
        expected = 0
        for layer in layers.numpy():
            counted = layer[mask.numpy()]
            expected += 0.5 * (layer - counted.mean()) / np.sqrt(counted.var() + 1e-12)
        for kind in (torch.bool, torch.int64, torch.float32):
            mixed = ScalarMix(2, layer_norm=True)(layers, mask.to(kind)).detach()
            np.testing.assert_allclose(mixed, expected, atol=1e-6)

    def test_fixed_weights_are_not_trained(self) -> None:
        mix = ScalarMix(2, weights=[0.0, -1e9])
        layers = torch.randn(2, 1, 2, 3)
        torch.testing.assert_close(mix(layers), layers[0])
        assert not any(parameter.requires_grad for parameter in mix.parameters())

    def test_a_wrong_number_of_layers_or_weights_is_refused(self) -> None:
        with pytest.raises(elmo.ElmoError, match="2 layers are given to a mix of 3"):
            ScalarMix(3)(torch.randn(2, 1, 1, 1))
        with pytest.raises(elmo.ElmoError, match="2 mix weights are given for 3 layers"):
            ScalarMix(3, weights=[1.0, 2.0])


class TestElmo:
    def test_gives_a_vector_a_token_for_each_output(self, model: elmo.Model) -> None:
        module = Elmo(model, num_outputs=2, dropout=0.0)
        output = module(model.batch_to_ids(SENTENCES))
        assert [tuple(vectors.shape) for vectors in output.vectors] == [(4, 5, 10)] * 2
        assert output.mask.sum(dim=1).tolist() == [3, 1, 0, 5]
        for vectors in output.vectors:
            for row, expected in enumerate(model.embed(SENTENCES)):
                np.testing.assert_allclose(vectors[row, : len(expected)].detach(), expected, atol=1e-6)
                assert not vectors[row, len(expected) :].any()

    def test_boundaries_are_kept_on_request(self, model: elmo.Model) -> None:
        output = Elmo(model, dropout=0.0, keep_boundaries=True)(model.batch_to_ids(SENTENCES))
        plain = Elmo(model, dropout=0.0)(model.batch_to_ids(SENTENCES))
        assert output.mask.sum(dim=1).tolist() == [5, 3, 2, 7]
        torch.testing.assert_close(output.vectors[0][3, 1:6], plain.vectors[0][3])
        assert output.vectors[0][2, :2].abs().sum() > 0  # even an empty sentence has its boundaries

    @pytest.mark.parametrize(("variant", "eps"), [("bilm-tf", 1e-12), ("allennlp", 1e-13)])
    def test_layer_norm_has_both_published_variants(self, tmp_path: Path, variant: str, eps: float) -> None:
        weights = write_model(tmp_path / "m", small_options())
        reference, model = Reference(small_options(), weights), elmo.load(tmp_path / "m")
        whole = [reference.embed(sentence)[0] for sentence in SENTENCES]
        mixed: Any = 0
        for layer in range(3):
            inner = slice(None) if variant == "allennlp" else slice(1, -1)
            counted = np.concatenate([layers[layer, inner] for layers in whole])
            mixed = mixed + np.concatenate(
                [(layers[layer, 1:-1] - counted.mean()) / np.sqrt(counted.var() + eps) / 3 for layers in whole]
            )
        output = Elmo(model, dropout=0.0, layer_norm=variant)(model.batch_to_ids(SENTENCES))  # type: ignore[arg-type]
        np.testing.assert_allclose(output.vectors[0][output.mask].detach(), mixed, atol=1e-5)

    def test_frozen_by_default_and_trained_on_request(self, model: elmo.Model) -> None:
        for trainable in (False, True):
            module = Elmo(model, trainable=trainable, dropout=0.0)
            (module(model.batch_to_ids(SENTENCES)).vectors[0].sum() + module.penalty(0.1)).backward()
            grads = {name: parameter.grad for name, parameter in module.named_parameters()}
            assert grads["mixes.0.weights"] is not None
            assert all((grads[name] is not None) == trainable for name in grads if name.startswith("bilm."))

    def test_dropout_acts_in_training_only(self, model: elmo.Model) -> None:
        module = Elmo(model, dropout=0.5)
        ids = model.batch_to_ids(SENTENCES)
        torch.manual_seed(0)
        dropped = module(ids).vectors[0]
        kept = module.eval()(ids).vectors[0]
        where = dropped != 0
        assert 0.2 < where[kept != 0].float().mean() < 0.8
        torch.testing.assert_close(dropped[where], 2 * kept[where])

    def test_fixed_mix_weights_choose_a_layer(self, model: elmo.Model) -> None:
        module = Elmo(model, dropout=0.0, mix_weights=[-1e9, 0.0, -1e9])
        vectors = module(model.batch_to_ids([SENTENCES[0]])).vectors[0][0]
        np.testing.assert_allclose(vectors.detach(), model.embed([SENTENCES[0]], layers=1)[0], atol=1e-6)

    def test_state_goes_in_and_comes_out(self, model: elmo.Model) -> None:
        module = Elmo(model, dropout=0.0).eval()
        first = module(model.batch_to_ids([SENTENCES[0]]))
        second = module(model.batch_to_ids([SENTENCES[3]]), first.state)
        carried = model.embed([SENTENCES[0], SENTENCES[3]], state="carry", batch_size=1)
        np.testing.assert_allclose(second.vectors[0][0].detach(), carried[1], atol=1e-6)

    def test_a_state_of_another_batch_is_refused(self, model: elmo.Model) -> None:
        state = model.bilm.zero_state(2)
        with pytest.raises(elmo.ElmoError, match="a state of 2 rows is given for a batch of 1"):
            Elmo(model)(model.batch_to_ids(["cat"]), state)

    def test_layer_norm_of_nothing_is_nothing(self, model: elmo.Model) -> None:
        output = Elmo(model, layer_norm=True, keep_boundaries=True)(model.batch_to_ids(["", ""]))
        assert output.vectors[0].isfinite().all()

    @pytest.mark.parametrize(
        "wrong", [{"layer_norm": "batch"}, {"num_outputs": 0}, {"dropout": 1.5}, {"mix_weights": [1.0]}]
    )
    def test_wrong_arguments_are_refused(self, model: elmo.Model, wrong: dict[str, object]) -> None:
        with pytest.raises(elmo.ElmoError):
            Elmo(model, **wrong)  # type: ignore[arg-type]


def test_a_model_that_reads_words_runs_in_a_task_model_too(tmp_path: Path) -> None:
    options = {"lstm": small_options()["lstm"], "n_tokens_vocab": 5}
    write_model(tmp_path / "m", options)
    (tmp_path / "m" / "vocab.txt").write_text("<S>\n</S>\n<UNK>\ncat\nsat\n")
    model = elmo.load(tmp_path / "m")
    sentences = [["cat", "sat"], ["dog"], []]
    output = Elmo(model, dropout=0.0)(model.batch_to_ids(sentences))
    for row, expected in enumerate(model.embed(sentences)):
        np.testing.assert_allclose(output.vectors[0][row, : len(expected)].detach(), expected, atol=1e-6)


def test_the_table_of_names_is_the_documented_one() -> None:
    from elmo.formats.bilm_tf import table

    options = small_options(n_layers=1)
    rows = table(ModelConfig.from_options(options))
    assert {row.theirs: row.shape for row in rows} == weight_shapes(options)
