from __future__ import annotations

import copy
import itertools
import pickle
import random
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import elmo
import elmo.embed as embed_module
from conftest import small_options, write_model
from elmo.embed import Embedder, EmbedOptions, EmbedSettings
from elmo.errors import ElmoError
from elmo.transfer import HostCopy

WORDS = ["the", "cat", "sat", "on", "a", "mat", ",", "é", "日本", "x" * 70]
Sentences = st.lists(st.lists(st.sampled_from(WORDS), max_size=12), max_size=12)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> elmo.Model:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, small_options())
    return elmo.load(folder)


def draw(count: int, seed: int = 0, longest: int = 20) -> list[list[str]]:
    rng = random.Random(seed)
    return [rng.choices(WORDS, k=rng.randrange(longest)) for _ in range(count)]


class TestWhatComesOut:
    def test_a_float32_array_of_tokens_by_dim_for_each_sentence(self, model: elmo.Model) -> None:
        vectors = model.embed(["the cat sat", ["the", "cat"], "", []])
        assert [v.shape for v in vectors] == [(3, 10), (2, 10), (0, 10), (0, 10)]
        assert all(v.dtype == np.float32 for v in vectors)

    @pytest.mark.parametrize(
        ("layers", "shape"),
        [("all", (3, 2, 10)), ("top", (2, 10)), (0, (2, 10)), ([0, 2], (2, 2, 10)), ([1], (1, 2, 10))],
    )
    def test_layers(self, model: elmo.Model, layers: Any, shape: tuple[int, ...]) -> None:
        everything = model.embed(["the cat"], layers="all")[0]
        chosen = model.embed(["the cat"], layers=layers)[0]
        assert chosen.shape == shape
        numbers: Any = {"all": [0, 1, 2], "top": 2}[layers] if isinstance(layers, str) else layers
        expected = everything[numbers]
        np.testing.assert_allclose(chosen, expected, atol=1e-6)

    def test_average_is_the_mean_of_the_layers_and_so_is_an_untrained_mix(self, model: elmo.Model) -> None:
        everything = model.embed(["the cat"], layers="all")[0]
        for layers in ("average", "mix"):
            np.testing.assert_allclose(model.embed(["the cat"], layers=layers)[0], everything.mean(0), atol=1e-6)

    @pytest.mark.parametrize(("pool", "reduce"), [("mean", np.mean), ("max", np.max)])
    def test_pooling_is_over_the_tokens(self, model: elmo.Model, pool: Any, reduce: Any) -> None:
        plain, pooled = (model.embed(["the cat sat"], layers="all", pool=p)[0] for p in (None, pool))
        np.testing.assert_allclose(pooled, reduce(plain, axis=1), atol=1e-6)
        assert model.embed(["the cat"], pool=pool)[0].shape == (10,)

    def test_pooling_nothing_gives_zeros(self, model: elmo.Model) -> None:
        assert not model.embed([""], pool="max")[0].any()

    @pytest.mark.parametrize("pool", [None, "mean"])
    def test_half_precision_is_the_rounded_vector(self, model: elmo.Model, pool: Any) -> None:
        full, half = (model.embed(["the cat"], dtype=dtype, pool=pool)[0] for dtype in ("float32", "float16"))
        assert np.array_equal(full.astype(np.float16), half)

    def test_numbers_of_numpy_are_numbers(self, model: elmo.Model) -> None:
        plain = model.embed(["the cat"], layers=[0, 2])[0]
        for layers in (np.array([0, 2]), (np.int64(0), np.int64(2)), range(0, 3, 2)):
            assert np.array_equal(model.embed(["the cat"], layers=layers)[0], plain)  # type: ignore[arg-type]

    def test_changing_one_result_changes_no_other(self, model: elmo.Model) -> None:
        first, second = model.embed(["the cat", "the cat"])
        first[:] = 0
        assert second.any()


class TestStateZero:
    @given(Sentences, st.integers(1, 200), st.randoms(use_true_random=False))
    def test_a_sentence_has_the_same_vectors_in_any_company(
        self, model: elmo.Model, sentences: list[list[str]], budget: int, rng: random.Random
    ) -> None:
        alone = [model.embed([sentence], layers="all")[0] for sentence in sentences]
        order = list(range(len(sentences)))
        rng.shuffle(order)
        together = model.embed([sentences[i] for i in order], layers="all", batch_tokens=budget)
        for place, vectors in zip(order, together, strict=True):
            np.testing.assert_allclose(vectors, alone[place], rtol=0, atol=1e-5)

    @given(st.lists(st.sampled_from(WORDS), min_size=2, max_size=12), st.data())
    def test_each_direction_sees_only_its_own_side(
        self, model: elmo.Model, tokens: list[str], data: st.DataObject
    ) -> None:
        t = data.draw(st.integers(0, len(tokens) - 1))
        half = model.config.lstm.projection_dim
        other = [*tokens[: t + 1], *reversed(tokens[t + 1 :]), "extra", "words"]
        before, after = (model.embed([s], layers="all")[0] for s in (tokens, other))
        np.testing.assert_allclose(before[:, : t + 1, :half], after[:, : t + 1, :half], rtol=0, atol=1e-6)
        other = ["extra", *reversed(tokens[:t]), *tokens[t:]]
        after = model.embed([other], layers="all")[0]
        np.testing.assert_allclose(before[:, t:, half:], after[:, t + 1 :, half:], rtol=0, atol=1e-6)

    def test_context_does_matter(self, model: elmo.Model) -> None:
        one, other = model.embed(["the cat sat", "a cat"], layers="top")
        assert np.abs(one[1] - other[1]).max() > 1e-3


class TestStateCarry:
    def test_batches_may_shrink_and_grow(self, model: elmo.Model) -> None:
        # The second call's rows are those of two batches of 3 and one of 1: rows 1 and 2 keep their state meanwhile.
        sentences = draw(7, seed=3, longest=6)
        by_hand, state = [], None
        for start in range(0, 7, 3):
            batch = sentences[start : start + 3]
            output = model.bilm(
                model.bilm.with_boundaries(model.batch_to_ids(batch)), None if state is None else state.take(len(batch))
            )
            state = output.state if state is None else state.put(output.state)
            by_hand += [output.layers[:, i, 1 : len(s) + 1].detach() for i, s in enumerate(batch)]
        assert state is not None
        assert state.rows == 3
        embedded = model.embed(sentences, layers="all", state="carry", batch_size=3)
        for ours, theirs in zip(embedded, by_hand, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)

    def test_a_long_sentence_does_not_pad_the_others(self, model: elmo.Model, monkeypatch: pytest.MonkeyPatch) -> None:
        padded: list[int] = []
        contextualise = type(model.bilm).contextualise

        def counted(self: Any, x: torch.Tensor, *arguments: Any, **options: Any) -> Any:
            padded.append(x.shape[0] * x.shape[1])
            return contextualise(self, x, *arguments, **options)

        monkeypatch.setattr(type(model.bilm), "contextualise", counted)
        model.embed([["cat"] * 500, *[["the"]] * 63], state="carry", batch_tokens=100, engine="reference")
        assert sum(padded) == 502 + 63 * 3

    def test_rows_that_are_new_start_from_zero(self, model: elmo.Model) -> None:
        state = model.bilm(model.bilm.with_boundaries(model.batch_to_ids([["cat"]]))).state
        grown = state.take(3)
        assert grown.rows == 3
        assert torch.equal(grown.m[:, :, :1], state.m)
        assert not grown.m[:, :, 1:].any()
        assert not grown.c[:, :, 1:].any()


class TestStateWarm:
    def test_every_sentence_starts_from_the_stored_state(self, model: elmo.Model) -> None:
        warm = model.warmed(["the cat sat", "on a mat"])
        assert warm.warm is not None
        sentences = draw(5, longest=6)
        for ours, sentence in zip(warm.embed(sentences, layers="all", state="warm"), sentences, strict=True):
            ids = model.bilm.with_boundaries(model.batch_to_ids([sentence]))
            expected = model.bilm(ids, warm.warm).layers[:, 0, 1:-1].detach()
            np.testing.assert_allclose(ours, expected, atol=1e-6)

    def test_it_is_the_mean_of_what_sentences_leave_behind(self, model: elmo.Model) -> None:
        warm = model.warmed(["the cat", "sat"]).warm
        first = model.bilm(model.bilm.with_boundaries(model.batch_to_ids(["the cat"]))).state
        second = model.bilm(model.bilm.with_boundaries(model.batch_to_ids(["sat"])), first).state
        assert warm is not None
        torch.testing.assert_close(warm.c, (first.c + second.c) / 2)
        torch.testing.assert_close(warm.m, (first.m + second.m) / 2)

    def test_a_model_without_one_says_how_to_make_it(self, model: elmo.Model) -> None:
        with pytest.raises(ElmoError, match="elmo convert IN OUT --warm-with TEXT"):
            model.embed(["cat"], state="warm")

    def test_it_is_not_made_from_nothing(self, model: elmo.Model) -> None:
        with pytest.raises(ElmoError, match="has no sentence"):
            model.warmed([])


class TestStreams:
    def test_order_is_the_inputs(self, model: elmo.Model) -> None:
        sentences = draw(300)
        for ours, sentence in zip(model.embed_iter(iter(sentences), batch_tokens=64), sentences, strict=True):
            assert len(ours) == len(sentence)

    def test_an_endless_stream_is_answered_before_much_of_it_is_read(self, model: elmo.Model) -> None:
        read = 0

        def endless() -> Iterator[str]:
            nonlocal read
            while True:
                read += 1
                yield "the cat sat"

        vectors = model.embed_iter(endless(), batch_tokens=100)
        next(vectors)
        assert read <= 20
        for _ in itertools.islice(vectors, 3000):
            pass
        assert read <= 3000 + 16 * 100 / 5 + 20

    def test_little_is_padding(self, model: elmo.Model) -> None:
        embedder = Embedder(model, EmbedSettings())
        sentences = draw(5000, longest=60)
        padded = used = 0
        for group in embedder.groups(sentences):
            for batch in embedder.batches(group):
                lengths = [len(group[i]) for i in batch]
                padded += len(lengths) * max(lengths)
                used += sum(lengths)
                assert len(lengths) * max(lengths) <= 2048
        assert used == sum(len(s) for s in sentences)
        assert padded < 1.1 * used

    def test_a_very_long_sentence_works(self, model: elmo.Model) -> None:
        long, short = model.embed([["the", "cat"] * 25_000, ["the", "cat"]], layers="top")
        assert long.shape == (50_000, 10)
        half = model.config.lstm.projection_dim
        np.testing.assert_allclose(long[:2, :half], short[:, :half], atol=1e-6)
        np.testing.assert_allclose(long[-2:, half:], short[:, half:], atol=1e-6)

    def test_a_very_long_word_works_and_is_not_kept(self, model: elmo.Model) -> None:
        embedder = Embedder(model, EmbedSettings())
        long = "a" * 100_000
        one, other = embedder.embed_iter([[long], ["a" * 50_000]])
        assert np.array_equal(one, other)
        assert all(len(word) < 100 for word in embedder.cache._slots)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU treated as a device that is not waited for, with windows of a CPU's size."""
    monkeypatch.setattr(embed_module, "_CPU", replace(embed_module._CPU, ahead=2))


class TestDeviceThatIsNotWaitedFor:
    """What a GPU's vectors go through, on a CPU; `test_gpu.py` has the same on a GPU."""

    @pytest.mark.parametrize("layers", ["average", "all", "top", "mix", 1, [2, 0]])
    @pytest.mark.parametrize("pool", [None, "mean", "max"])
    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_vectors_are_the_same(
        self, model: elmo.Model, monkeypatch: pytest.MonkeyPatch, layers: Any, pool: Any, dtype: Any
    ) -> None:
        warm = model.warmed(["the cat"])
        sentences = [[], *draw(120, seed=5), [], []]
        for state in ("zero", "carry", "warm"):
            asked = EmbedSettings(layers=layers, pool=pool, dtype=dtype, state=state, batch_tokens=50, batch_size=7)
            expected = list(Embedder(warm, asked).embed_iter(sentences))
            with monkeypatch.context() as patch:
                patch.setattr(embed_module, "_CPU", replace(embed_module._CPU, ahead=2))
                ahead = Embedder(warm, asked)
            for found in (ahead.embed(sentences), list(ahead.embed_iter(iter(sentences)))):
                for ours, theirs in zip(found, expected, strict=True):
                    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
                    if pool is None:
                        assert np.array_equal(ours, theirs)
                    np.testing.assert_allclose(ours, theirs, rtol=1e-3 if dtype == "float16" else 0, atol=1e-6)
                shared = Counter(id(ours.base) for ours in found if ours.base is not None)
                assert max(shared.values(), default=0) <= 64  # one that is kept keeps no more alive

    @pytest.mark.usefixtures("as_on_a_gpu")
    @pytest.mark.parametrize("pool", [None, "mean", "max"])
    def test_nothing_has_no_vectors_or_zeros(self, model: elmo.Model, pool: Any) -> None:
        embedder = Embedder(model, EmbedSettings(pool=pool))
        assert embedder.embed([]) == []
        for vectors in embedder.embed(["", ""]):
            assert vectors.shape == ((0, 10) if pool is None else (10,))
            assert not vectors.any()

    @pytest.mark.usefixtures("as_on_a_gpu")
    def test_some_batches_and_no_more_are_under_way(self, model: elmo.Model, monkeypatch: pytest.MonkeyPatch) -> None:
        under_way: list[int] = []
        most: list[int] = []

        class Counted(HostCopy):
            def __init__(self, tensor: torch.Tensor) -> None:
                super().__init__(tensor)
                under_way.append(1)
                most.append(len(under_way))

            def wait(self) -> torch.Tensor:
                under_way.pop()
                return super().wait()

        monkeypatch.setattr(embed_module, "HostCopy", Counted)
        embedder = Embedder(model, EmbedSettings(batch_tokens=40))
        for embed in (embedder.embed, lambda sentences: list(embedder.embed_iter(sentences))):
            most.clear()
            embed(draw(300))
            assert len(most) > 20
            assert not under_way
            assert max(most) == embed_module._CPU.ahead + 1
        assert most.count(1) > 1  # lazily, a window is waited for before the next is read
        most.clear()
        embedder.embed(draw(300))
        assert most.count(1) == 1

    @pytest.mark.usefixtures("as_on_a_gpu")
    def test_a_stream_is_not_read_ahead_of(self, model: elmo.Model) -> None:
        read = 0

        def endless() -> Iterator[str]:
            nonlocal read
            while True:
                read += 1
                yield "the cat sat"

        embedder = Embedder(model, EmbedSettings(batch_tokens=100))
        next(embedder.embed_iter(endless()))
        assert read == 20

    @pytest.mark.usefixtures("as_on_a_gpu")
    def test_what_goes_wrong_leaves_it_usable(self, model: elmo.Model, monkeypatch: pytest.MonkeyPatch) -> None:
        embedder = Embedder(model, EmbedSettings(batch_tokens=40))
        sentences = draw(200)
        expected = embedder.embed(sentences)
        contextualise, calls = embedder._engine.contextualise, itertools.count()

        def failing(*arguments: Any, **options: Any) -> Any:
            if next(calls) == 7:
                raise MemoryError
            return contextualise(*arguments, **options)

        monkeypatch.setattr(embedder._engine, "contextualise", failing)
        with pytest.raises(MemoryError):
            embedder.embed(sentences)
        with pytest.raises(ElmoError, match="a sentence is"):
            embedder.embed([*sentences, 3])  # type: ignore[list-item]
        for ours, theirs in zip(embedder.embed(sentences), expected, strict=True):
            assert np.array_equal(ours, theirs)


class TestSizeOfBatches:
    def test_it_is_the_devices_if_not_given(self, model: elmo.Model, monkeypatch: pytest.MonkeyPatch) -> None:
        assert Embedder(model, EmbedSettings()).batch_tokens == 2048
        assert Embedder(model, EmbedSettings(batch_tokens=7)).batch_tokens == 7
        monkeypatch.setattr(embed_module, "_CPU", embed_module._GPU)
        assert Embedder(model, EmbedSettings()).batch_tokens == 16384

    def test_a_gpus_window_holds_several(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        write_model(tmp_path, small_options(dim=600, projection_dim=512))
        monkeypatch.setattr(embed_module, "_CPU", embed_module._GPU)
        embedder = Embedder(elmo.load(tmp_path), EmbedSettings(layers="all"))
        sentences = [["the"] * 18] * 40_000
        windows = [20 * len(group) for group in embedder.groups(sentences)]
        assert [round(tokens / 16384) for tokens in windows[:4]] == [1, 2, 4, 4]


class TestEmbeddersOfOneModel:
    def test_word_vectors_are_kept_between_calls_until_the_weights_change(self, model_folder: Path) -> None:
        model = elmo.load(model_folder)
        before = model.embed(["cat"], layers=0)[0]
        assert model.embedder(layers=0).cache.misses == 3
        model.embed(["cat"], layers=0)
        assert model.embedder(layers=0).cache.misses == 3
        model.bilm.encoder.projection.bias.data.add_(1)  # type: ignore[union-attr,operator]
        np.testing.assert_allclose(model.embed(["cat"], layers=0)[0], before + 1, atol=1e-5)

    @pytest.mark.parametrize("column", range(4))
    def test_a_unit_that_is_taken_out_is_missed(self, model_folder: Path, column: int) -> None:
        model = elmo.load(model_folder)
        before = model.embed(["cat"], layers=1)[0]
        with torch.no_grad():
            model.bilm.forwards[0].get_parameter("projection")[:, column] = 0
        after = model.embed(["cat"], layers=1)[0]
        assert before[0, column] != 0
        assert after[0, column] == 0

    def test_a_mix_and_a_start_state_that_change_do_so_for_the_next_call(self, model_folder: Path) -> None:
        mix = elmo.ScalarMix(3)
        model = replace(elmo.load(model_folder), mix=mix).warmed(["the cat"])
        assert model.warm is not None
        mixed, warm = model.embed(["cat"], layers="mix")[0], model.embed(["cat"], state="warm")[0]
        with torch.no_grad():
            mix.gamma.fill_(2)
            model.warm.m.zero_()
            model.warm.c.zero_()
        np.testing.assert_allclose(model.embed(["cat"], layers="mix")[0], 2 * mixed, atol=1e-6)
        np.testing.assert_allclose(model.embed(["cat"], state="warm")[0], model.embed(["cat"])[0], atol=1e-6)
        assert np.abs(warm - model.embed(["cat"])[0]).max() > 1e-3

    def test_trained_weights_are_never_met_with_old_vectors(self, model_folder: Path) -> None:
        model = elmo.load(model_folder)
        before = model.embed(["cat"])[0]
        module = elmo.Elmo(model, trainable=True)
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1, fused=True)
        for _ in range(2):
            module(model.batch_to_ids(["cat"])).vectors[0].sum().backward()
            optimizer.step()
            after = model.embed(["cat"])[0]
            assert np.abs(after - before).max() > 1e-2
            expected = model.bilm(model.bilm.with_boundaries(model.batch_to_ids(["cat"]))).layers.mean(0)[0, 1:-1]
            np.testing.assert_allclose(after, expected.detach(), atol=1e-5)
            before = after

    def test_settings_that_do_not_concern_it_share_an_engine(self, model_folder: Path) -> None:
        model = elmo.load(model_folder)
        one, other = (model.embedder(layers=layers) for layers in ("all", "top"))
        assert one is not other
        assert one._engine is other._engine
        assert model.embedder(engine="reference")._engine is not one._engine

    def test_several_threads_may_use_one_model(self, model: elmo.Model) -> None:
        sentences = [[f"{word}{i % 50}" for word in WORDS[: i % 9]] for i in range(200)]
        expected = elmo.Model.of(model.bilm).embed(sentences)
        shared = elmo.Model.of(model.bilm)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            with ThreadPoolExecutor(4) as pool:
                results = list(pool.map(lambda _: shared.embed(sentences, batch_tokens=64), range(8)))
        finally:
            sys.setswitchinterval(interval)
        for result in [*results, shared.embed(sentences, batch_tokens=64)]:
            for ours, theirs in zip(result, expected, strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_model_can_be_copied_and_sent_to_another_process(model: elmo.Model) -> None:
    expected = model.embed(["the cat"])[0]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_allclose(other.embed(["the cat"])[0], expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_in_another_precision_embeds_from_every_state(model: elmo.Model, dtype: torch.dtype) -> None:
    other = elmo.Model.of(copy.deepcopy(model.bilm).to(dtype), warm=model.warmed(["the cat"]).warm)
    for state in ("zero", "carry", "warm"):
        vectors = other.embed(["the cat", "sat"], state=state, batch_size=1)[1]
        assert vectors.dtype == np.float32
        assert np.isfinite(vectors).all()


def test_a_mix_with_layer_norm_is_no_part_of_a_model(model: elmo.Model) -> None:
    with pytest.raises(ElmoError, match="normalises over a batch"):
        elmo.Model.of(model.bilm, mix=elmo.ScalarMix(3, layer_norm=True))


def test_a_warm_state_of_another_model_is_refused(model: elmo.Model) -> None:
    state = model.bilm.zero_state(2)
    with pytest.raises(ElmoError, match=r"warm\.m has shape"):
        elmo.Model.of(model.bilm, warm=state)


class TestMistakes:
    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ({"precision": "fp64"}, "precision is 'fp64': give one of auto, fp32, bf16, int8"),
            ({"state": "hot"}, "state is 'hot': give one of zero, carry, warm"),
            ({"pool": "sum"}, "pool is 'sum': give one of none, mean, max"),
            ({"dtype": "int8"}, "dtype is 'int8'"),
            ({"layers": 3}, "layers is 3: give one of all, .* a list of numbers, from 0 to 2"),
            ({"layers": -1}, "layers is -1"),
            ({"layers": "bottom"}, "layers is 'bottom'"),
            ({"layers": []}, r"layers is \(\)"),
            ({"layers": ["0"]}, "layers is"),
            ({"layers": 1.5}, "layers is 1.5"),
            ({"layers": None}, "layers is None"),
            ({"pool": 3}, "pool is 3"),
            ({"batch_tokens": 0}, "batch_tokens is 0: give a whole number, 1 or more"),
            ({"batch_size": 1.5}, "batch_size is 1.5"),
            ({"layer": 1}, "unknown setting 'layer': known are layers"),
            ({"device": "cuda:77"}, "device is 'cuda:77', which cannot be used here"),
            ({"device": "meta"}, "device is 'meta'"),
            ({"device": "toaster"}, "device is 'toaster'"),
        ],
    )
    def test_a_wrong_setting_is_named_with_what_is_allowed(
        self, model: elmo.Model, setting: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ElmoError, match=message):
            model.embed(["the cat"], **setting)

    @pytest.mark.parametrize("sentences", ["the cat sat", [b"bytes"], [["the", 3]], [5]])
    def test_what_is_not_a_list_of_sentences_is_refused(self, model: elmo.Model, sentences: Any) -> None:
        with pytest.raises(ElmoError, match="sentence"):
            model.embed(sentences)

    def test_a_string_is_no_stream_of_sentences_either(self, model: elmo.Model) -> None:
        for call in (model.embed_iter, model.warmed, model.embedder().embed, model.embedder().embed_iter):
            with pytest.raises(ElmoError, match="put it in a list"):
                call("the cat sat")


def test_what_sentences_start_from_does_not_depend_on_which_came_first(
    model: elmo.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the kernels, whose rows have the same bits in any company."""
    monkeypatch.setattr("elmo.engine.compiled.library", lambda: None)
    starts = []
    for first in (["a"], ["the cat", *(f"word{i}" for i in range(300))]):
        embedder = Embedder(model, EmbedSettings())
        embedder.embed(first)
        starts.append(embedder._begun)
    one, other = starts
    assert one is not None
    assert other is not None
    assert torch.equal(one.m, other.m)
    assert torch.equal(one.c, other.c)


def test_the_keyword_arguments_are_the_fields_of_the_settings() -> None:
    assert list(EmbedOptions.__annotations__) == [field.name for field in fields(EmbedSettings)]
