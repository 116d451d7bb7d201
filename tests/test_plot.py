"""`elmo plot`: each picture is written whole, says what the numbers are, and is refused before work is done."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elmo
from conftest import run_elmo, small_options, write_model
from elmo.errors import ElmoError

pytest.importorskip("matplotlib", reason="needs matplotlib")

from elmo.explore.neighbours import Query
from elmo.plot.canvas import check_picture, save_figure
from elmo.plot.command import layers, loss
from elmo.plot.figures import Mix, Occurrences, cosines_figure, layers_figure, loss_figure, map_figure
from elmo.plot.metrics import read_curves
from elmo.plot.occurrences import find_occurrences

METRICS = [
    {"step": 50, "loss": 5.5},
    {"step": 100, "loss": 5.0, "norm": 1.0},
    {"step": 100, "valid_loss": 5.1, "valid_forward": 5.2, "valid_backward": 5.0},
    {"step": 150, "loss": math.nan},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> elmo.Model:
    folder = tmp_path_factory.mktemp("plot") / "model"
    write_model(folder, small_options())
    return elmo.load(folder)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in METRICS))
    return folder


def saved_task(folder: Path, weights: Any) -> Path:
    folder.mkdir()
    about = {"format": "elmo task", "version": 1, "config": {"task": "ner"}, "layer_weights": weights}
    (folder / "task.json").write_text(json.dumps(about))
    return folder


def text_of(picture: Path) -> str:
    return picture.read_text(encoding="utf-8")


class TestCurves:
    def test_losses_are_read_by_step_and_nan_is_left_out(self, run: Path) -> None:
        expected = {
            "training": [(50, 5.5), (100, 5.0)],
            "held out, forward": [(100, 5.2)],
            "held out, backward": [(100, 5.0)],
        }
        assert read_curves(run) == expected
        assert read_curves(run / "metrics.jsonl") == expected

    @given(line=st.one_of(st.text(max_size=20), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(str)))
    def test_any_other_line_is_refused_with_its_number(
        self, tmp_path_factory: pytest.TempPathFactory, line: str
    ) -> None:
        path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
        path.write_text('{"step": 1, "loss": 2}\n' + line.replace("\n", " ").replace("\r", " "), encoding="utf-8")
        if path.read_text(encoding="utf-8").endswith("\n"):
            assert read_curves(path)
        else:
            with pytest.raises(ElmoError, match=r"line 2 is no record of a run"):
                read_curves(path)

    def test_a_run_without_losses_or_without_a_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ElmoError, match="give the folder of a run"):
            read_curves(tmp_path)
        (tmp_path / "metrics.jsonl").write_text("")
        with pytest.raises(ElmoError, match="has no loss in it yet"):
            read_curves(tmp_path)

    def test_losses_are_drawn_with_their_perplexities(self) -> None:
        axis = loss_figure({"training": [(1, 5), (2, 4)], "held out": [(2, 4.5)]}, {"unigram": 6.0}).axes[0]
        assert [line.get_label() for line in axis.lines] == ["training", "held out", "unigram"]
        assert [list(line.get_ydata()) for line in axis.lines] == [[5, 4], [4.5], [6, 6]]
        (right,) = axis.child_axes
        assert right.yaxis.get_major_formatter()(math.log(385.3), None) == "385"

    def test_a_task_has_no_perplexity(self) -> None:
        assert loss_figure({"training": [(1, 5)]}, {}).axes[0].child_axes == []


class TestLayers:
    def test_each_mix_is_a_column_of_its_shares(self) -> None:
        axis = layers_figure([Mix("ner", "input", [0.1, 0.7, 0.2]), Mix("srl", "output", [0.5, 0.25, 0.25])]).axes[0]
        assert np.array_equal(axis.images[0].get_array(), [[0.1, 0.5], [0.7, 0.25], [0.2, 0.25]])
        assert [label.get_text() for label in axis.get_xticklabels()] == ["ner\ninput", "srl\noutput"]

    @pytest.mark.parametrize("mixes", [[], [Mix("a", "input", [1.0]), Mix("b", "input", [0.5, 0.5])]])
    def test_mixes_of_other_numbers_of_layers_are_refused(self, mixes: list[Mix]) -> None:
        with pytest.raises(ElmoError, match="draw those of one number of layers"):
            layers_figure(mixes)


class TestMap:
    SENTENCES = ("a bank", "the Bank of the bank", "no such word", "bank")

    def stream(self) -> Iterator[list[str]]:
        yield from (sentence.split() for sentence in self.SENTENCES)

    def test_every_occurrence_is_found_in_any_case(self, model: elmo.Model) -> None:
        query = Query("my bank .", 1)
        found = find_occurrences(model.embedder(layers="all"), "BANK", self.stream(), {"mine": query}, 10)
        every = model.embed(self.SENTENCES, layers="all")
        expected = [every[0][:, 1], every[1][:, 1], every[1][:, 4], every[3][:, 0]]
        np.testing.assert_allclose(found.vectors, expected, atol=1e-6)
        np.testing.assert_allclose(found.examples["mine"], model.embed(["my bank ."], layers="all")[0][:, 1], atol=1e-6)
        assert len(find_occurrences(model.embedder(layers="all"), "bank", self.stream(), {}, 2).vectors) == 2

    def test_a_word_that_is_nowhere_is_refused(self, model: elmo.Model) -> None:
        with pytest.raises(ElmoError, match="'river' is not in the text"):
            find_occurrences(model.embedder(layers="all"), "river", self.stream(), {}, 10)
        with pytest.raises(ElmoError, match="--most is 0"):
            find_occurrences(model.embedder(layers="all"), "bank", self.stream(), {}, 0)

    def test_colours_are_those_of_the_nearest_example(self) -> None:
        vectors = np.array([[[1, 0]], [[0.9, 0.1]], [[0, 1]]], dtype=np.float32)
        examples = {"first": vectors[0], "second": vectors[2]}
        figure = map_figure("word", Occurrences(vectors, examples))
        colours = figure.axes[0].collections[0].get_facecolor()
        assert np.array_equal(colours[0], colours[1])
        assert not np.array_equal(colours[0], colours[2])
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["first", "second"]

    def test_all_layers_have_one_scale(self) -> None:
        spread = np.random.default_rng(0).normal(size=(5, 4))
        vectors = np.stack([np.ones((5, 4)), spread], axis=1).astype(np.float32)
        figure = map_figure("word", Occurrences(vectors, {}))
        assert len({axis.get_xlim() for axis in figure.axes}) == 1
        assert np.ptp(figure.axes[0].collections[0].get_offsets(), axis=0).max() < 1e-6

    def test_a_single_occurrence_can_be_drawn(self, tmp_path: Path) -> None:
        save_figure(map_figure("word", Occurrences(np.ones((1, 3, 4), np.float32), {})), tmp_path / "one.svg")
        assert "layer 2" in text_of(tmp_path / "one.svg")


class TestFiles:
    def test_the_same_numbers_give_the_same_bytes(self, tmp_path: Path) -> None:
        for ending in ("svg", "png"):
            for name in ("first", "second"):
                save_figure(loss_figure({"training": [(1, 5), (2, 4)]}, {}), tmp_path / f"{name}.{ending}")
            assert (tmp_path / f"first.{ending}").read_bytes() == (tmp_path / f"second.{ending}").read_bytes()
        assert (tmp_path / "first.png").read_bytes().startswith(b"\x89PNG")

    def test_a_picture_that_could_not_be_written_is_refused_first(self, tmp_path: Path) -> None:
        (tmp_path / "there.svg").touch()
        (tmp_path / "folder.svg").mkdir()
        for name, said in (
            ("a.jpg", "ends in none of"),
            ("there.svg", "--overwrite"),
            ("folder.svg", "is a folder"),
            ("nowhere/a.svg", "there is no folder"),
        ):
            with pytest.raises(ElmoError, match=said):
                check_picture(tmp_path / name, overwrite=False)
        check_picture(tmp_path / "there.svg", overwrite=True)

    def test_dollars_in_a_text_are_dollars(self, tmp_path: Path) -> None:
        tokens, example = ["$x^$", "US$5$"], r"from $ 5 to $ \foo"
        save_figure(cosines_figure(tokens, ["a"], np.ones((2, 1))), tmp_path / "tokens.svg")
        vectors = np.ones((1, 1, 4), np.float32)
        save_figure(map_figure("$$", Occurrences(vectors, {example: vectors[0]})), tmp_path / "map.svg")
        assert all(f">{token}</text>" in text_of(tmp_path / "tokens.svg") for token in tokens)
        assert f">{example}</text>" in text_of(tmp_path / "map.svg")
        assert ">$$, 1 times</text>" in text_of(tmp_path / "map.svg")

    def test_without_matplotlib_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(ElmoError, match=r"pip install 'elmo\[plot\]'"):
            check_picture(tmp_path / "a.svg", overwrite=False)


class TestCommand:
    def test_loss(self, run: Path, tmp_path: Path) -> None:
        result = run_elmo("plot", "loss", run, "-o", tmp_path / "loss.svg", "--line", "a = b=385.3")
        assert result.returncode == 0, result.stderr
        assert "held out, backward" in text_of(tmp_path / "loss.svg")
        assert "a = b" in text_of(tmp_path / "loss.svg")

    def test_layers(self, tmp_path: Path) -> None:
        folder = saved_task(tmp_path / "ner", {"input": [0.25, 0.5, 0.25], "output": [0.1, 0.2, 0.7]})
        result = run_elmo("plot", "layers", folder, "-o", tmp_path / "layers.svg")
        assert result.returncode == 0, result.stderr
        assert "0.70" in text_of(tmp_path / "layers.svg")

    def test_neighbours_and_cosines(self, model: elmo.Model, tmp_path: Path) -> None:
        elmo.save(model, tmp_path / "model")
        (tmp_path / "text.txt").write_text("a bank\n\nThe bank of the river .\n")
        options = ["--model", tmp_path / "model", "-o"]
        commands: dict[str, list[Any]] = {
            "map": ["neighbours", "bank", "--text", tmp_path / "text.txt", "--in", "my bank ."],
            "tokens": ["cosines", "a bank", "the river bank", "--layers", "1"],
        }
        for name, arguments in commands.items():
            result = run_elmo("plot", *arguments, *options, tmp_path / f"{name}.svg")
            assert result.returncode == 0, result.stderr
        assert "bank, 2 times" in text_of(tmp_path / "map.svg")
        assert "river" in text_of(tmp_path / "tokens.svg")

    @pytest.mark.parametrize(
        ("weights", "said"),
        [({}, "has learned no layer weights"), ({"input": [0.5, "x"]}, "no whole task model"), (None, "no whole")],
    )
    def test_a_task_model_without_weights_is_refused(self, tmp_path: Path, weights: Any, said: str) -> None:
        with pytest.raises(ElmoError, match=said):
            layers([str(saved_task(tmp_path / "task", weights))], str(tmp_path / "layers.svg"))
        with pytest.raises(ElmoError, match="is no task model"):
            layers([str(tmp_path)], str(tmp_path / "layers.svg"))

    @pytest.mark.parametrize("line", ["unigram", "=3", "unigram=x", "unigram=-1", "unigram=inf"])
    def test_a_line_without_a_name_or_a_perplexity_is_refused(self, run: Path, line: str) -> None:
        with pytest.raises(ElmoError, match="give a name and a perplexity"):
            loss(str(run), str(run / "loss.svg"), [line])
        assert not (run / "loss.svg").exists()


def test_cosines_are_drawn_as_they_are() -> None:
    values = np.array([[1.0, -0.5]])
    axis = cosines_figure(["a"], ["b", "c"], values).axes[0]
    assert np.array_equal(axis.images[0].get_array(), values)
