"""Checkpoints and modules that TensorFlow wrote (tests/data/tensorflow says how), read without it."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import elmo
import tf_files
from conftest import run_elmo, small_options, write_model
from elmo.chars import words_to_ids
from elmo.errors import ElmoError
from elmo.formats import tensor_bundle, tf_checkpoint
from elmo.formats.tf_checkpoint import plain_name
from elmo.lm.begin import Start, read_start
from elmo.lm.distributed import Ranks
from elmo.lm.network import Window
from elmo.lm.settings import TrainConfig
from elmo.lm.softmax import SoftmaxHead
from elmo.lm.train import Training
from lm_corpus import MemoryCorpus

TENSORFLOW = Path(__file__).parent / "data" / "tensorflow"
INDEX = "model.ckpt-3.index"
DATA = "model.ckpt-3.data-00000-of-00001"
BATCHES = json.loads((TENSORFLOW / "figures.json").read_text(encoding="utf-8"))["batches"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    shutil.copytree(TENSORFLOW, tmp_path / "run")
    return tmp_path / "run"


def settings(**optimizer: Any) -> TrainConfig:
    return TrainConfig.from_dict(
        {
            "model": small_options(),
            "data": {"rows": 3, "unroll_steps": 5},
            "softmax": {"kind": "full"},
            "optimizer": optimizer,
            "train": {"steps": 2, "dropout": 0.0},
        }
    )


def corpus() -> MemoryCorpus:
    """Some text with the words of the checkpoint, in its order."""
    text = [["the", ".", "cat", "sat", "on", "mat", "naïve", "猫"]] * 5
    made = MemoryCorpus([text], text)
    made.vocab = elmo.load(TENSORFLOW).vocab or made.vocab
    return made


def window(batch: dict[str, Any]) -> Window:
    words = sorted({word for direction in batch["inputs"] for row in direction for word in row})
    places = [[[words.index(word) for word in row] for row in direction] for direction in batch["inputs"]]
    return Window(torch.from_numpy(words_to_ids(words)), torch.tensor(places), torch.tensor(batch["targets"]))


def losses(start: Start, asked: TrainConfig) -> list[list[float]]:
    """Losses of both directions in the two steps that TensorFlow took, too, each from the zero state."""
    training = Training(asked, corpus(), Ranks(), start.lm)
    start.recall(training.optimizer)
    found = []
    for batch in BATCHES:
        training.state = training.lm.bilm.zero_state(3)
        step = training.advance([window(batch)])
        found.append([step.forward, step.backward])
    return found


def begun(path: Path, corpus: MemoryCorpus, settings: TrainConfig) -> Start:
    return read_start(elmo.load(path), path, corpus, settings)


class TestTrainingGoesOn:
    def test_two_steps_have_the_losses_that_tensorflow_has(self) -> None:
        found = losses(begun(TENSORFLOW, corpus(), settings()), settings())
        np.testing.assert_allclose(found, [batch["losses"] for batch in BATCHES], atol=1e-5)

    def test_without_what_adagrad_remembered_the_second_has_another(self) -> None:
        start = begun(TENSORFLOW, corpus(), settings())
        assert set(start.sums) == {name for name, _ in start.lm.named_parameters()}
        found = losses(Start(start.lm, {}), settings())
        assert np.abs(np.array(found[1]) - BATCHES[1]["losses"]).max() > 5e-5

    def test_another_optimizer_starts_from_the_weights_alone(self) -> None:
        asked = settings(kind="adamw", rate=0.01)
        assert len(losses(begun(TENSORFLOW, corpus(), asked), asked)) == 2

    def test_another_model_or_vocabulary_is_refused(self) -> None:
        other = TrainConfig.from_dict({"model": small_options(dim=13)})
        with pytest.raises(ElmoError, match=r"another model than the config's \[model\]"):
            begun(TENSORFLOW, corpus(), other)
        text = [["other", "words"]] * 5
        with pytest.raises(ElmoError, match="another vocabulary than the prepared text"):
            begun(TENSORFLOW, MemoryCorpus([text], text), settings())

    def test_the_softmax_needs_its_words(self, checkpoint: Path) -> None:
        (checkpoint / "vocab.txt").unlink()
        with pytest.raises(ElmoError, match=r"put the vocab\.txt of the checkpoint beside it"):
            begun(checkpoint, corpus(), settings())

    def test_by_the_command(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("the cat sat on the mat .\n" * 40)
        (tmp_path / "valid").write_text("the mat sat .\n" * 5)
        prepared = run_elmo(
            *("prepare", tmp_path / "text", "-o", tmp_path / "corpus", "--vocab", TENSORFLOW / "vocab.txt"),
            *("--valid", tmp_path / "valid", "--workers", "1"),
        )
        assert prepared.returncode == 0, prepared.stderr
        (tmp_path / "c.toml").write_text(
            '[data]\nrows = 2\nunroll_steps = 5\n[softmax]\nkind = "full"\n[train]\nsteps = 3\nvalidate_every = 3\n'
            "[model.lstm]\ndim = 12\nprojection_dim = 5\nn_layers = 2\ncell_clip = 3\nproj_clip = 3\n"
            "use_skip_connections = true\n[model.char_cnn]\nembedding = { dim = 4 }\nn_highway = 1\n"
            "filters = [[1, 4], [2, 4], [3, 8]]\n"
        )
        run = ("pretrain", tmp_path / "c.toml", "-o", tmp_path / "run", "--corpus", tmp_path / "corpus", "--device")
        trained = run_elmo(*run, "cpu", "--start", TENSORFLOW)
        assert trained.returncode == 0, trained.stderr
        assert elmo.load(tmp_path / "run" / "model").head is not None
        resumed = run_elmo(*run, "cpu", "--resume")
        assert resumed.returncode == 2
        assert b"started from another model" in resumed.stderr
        embedded = run_elmo(*run, "cpu", "--start", "default")
        assert embedded.returncode == 2
        assert b"default is another model than the config's [model]: it is" in embedded.stderr


class TestCheckpoint:
    def test_weights_head_and_words_are_read(self) -> None:
        model = elmo.load(TENSORFLOW)
        assert (model.source, len(model.vocab or ())) == ("tensorflow", 11)
        assert model.head is not None
        assert model.score(["the cat sat"])[0].forward.shape == (4,)

    @pytest.mark.parametrize("name", ["", "checkpoint", "model.ckpt-3", INDEX, DATA])
    def test_it_may_be_named_by_its_folder_its_prefix_or_any_file(self, name: str) -> None:
        assert elmo.load(TENSORFLOW / name).source == "tensorflow"

    def test_its_folder_may_have_moved(self, checkpoint: Path) -> None:
        (checkpoint / "checkpoint").write_text('model_checkpoint_path: "/gone/../etc/model.ckpt-3"\n')
        assert elmo.load(checkpoint).source == "tensorflow"

    def test_without_a_vocabulary_there_is_no_head(self, checkpoint: Path) -> None:
        (checkpoint / "vocab.txt").unlink()
        model = elmo.load(checkpoint)
        assert model.head is None
        assert model.embed(["the cat"])[0].shape == (2, 10)

    def test_it_becomes_a_native_folder_with_its_head(self, tmp_path: Path) -> None:
        result = run_elmo("convert", TENSORFLOW, tmp_path / "n")
        assert result.returncode == 0, result.stderr
        model, again = elmo.load(TENSORFLOW), elmo.load(tmp_path / "n")
        assert np.array_equal(model.embed(["the cat"])[0], again.embed(["the cat"])[0])
        assert np.array_equal(model.score(["the cat"])[0].forward, again.score(["the cat"])[0].forward)

    def test_a_hub_module_is_the_same_network_with_its_mix(self) -> None:
        model, hub = elmo.load(TENSORFLOW), elmo.load(TENSORFLOW / "hub")
        assert hub.source == "tf-hub"
        assert np.array_equal(model.embed(["the cat"])[0], hub.embed(["the cat"])[0])
        layers = hub.embed(["the cat"], layers="all")[0]
        shares = np.exp([0.5, -0.25, 1.0]) / np.exp([0.5, -0.25, 1.0]).sum()
        expected = 1.5 * np.tensordot(shares, layers, axes=1)
        np.testing.assert_allclose(hub.embed(["the cat"], layers="mix")[0], expected, atol=1e-6)

    @pytest.mark.parametrize(
        ("theirs", "ours"),
        [
            ("RNN_0/rnn/multi_rnn_cell/cell_1/lstm_cell/kernel", "RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/W_0"),
            ("RNN_1/rnn/lstm_cell/projection/kernel", "RNN_1/RNN/LSTMCell/W_P_0"),
            ("RNN_1/rnn/lstm_cell/bias/Adagrad", "RNN_1/RNN/LSTMCell/B/Adagrad"),
            ("RNN_0/RNN/MultiRNNCell/Cell0/rnn/lstm_cell/bias", "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/B"),
            ("RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_P_0", "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_P_0"),
            ("CNN/W_cnn_3", "CNN/W_cnn_3"),
        ],
    )
    def test_names_of_all_releases_are_known(self, theirs: str, ours: str) -> None:
        assert plain_name(theirs) == ours


def write_variables(folder: Path, options: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A folder of bilm-tf, and its weights under the names that an old TensorFlow gives them."""
    weights = {f"lm/{name}": value for name, value in write_model(folder, options).items()}
    (folder / "weights.hdf5").rename(folder.with_name("weights.hdf5"))
    return weights | {f"lm/{name}": value for name, value in more.items()}


class TestOtherCheckpoints:
    """Written by ourselves (`tf_files.py`)."""

    def test_variables_in_several_data_files_of_several_types(self, tmp_path: Path) -> None:
        folder, options = tmp_path / "run", small_options()
        weights = write_variables(folder, options)
        weights["lm/CNN/b_cnn_0"] = weights["lm/CNN/b_cnn_0"].astype(np.float64)
        tf_files.write_checkpoint(folder / "m", weights | {"global_step": np.array(7)}, shards=3)
        expected = elmo.load(tmp_path / "weights.hdf5", options=folder / "options.json").embed(["the cat"])[0]
        assert np.array_equal(elmo.load(folder).embed(["the cat"])[0], expected)

    def test_a_softmax_that_shares_the_table_of_words(self, tmp_path: Path) -> None:
        options = {"lstm": small_options()["lstm"], "n_tokens_vocab": 4}
        bias = {"softmax/b": np.arange(4, dtype=np.float32)}
        weights = write_variables(tmp_path / "run", options, **bias)
        (tmp_path / "run" / "vocab.txt").write_text("<S>\n</S>\n<UNK>\ncat\n")
        sums = {f"{name}/Adagrad": np.full_like(value, 2) for name, value in weights.items()}
        tf_files.write_checkpoint(tmp_path / "run" / "m", weights | sums)
        model = elmo.load(tmp_path / "run")
        assert isinstance(model.head, SoftmaxHead)
        assert np.array_equal(model.head.weight.numpy(), weights["lm/embedding"])
        found = tf_checkpoint.read_accumulators(tmp_path / "run" / "m", model.config)
        assert found["head.weight"].shape == (4, 5)
        assert found["bilm.encoder.weight"][:, 0].tolist() == [1, 2, 2, 2, 2]

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"lm/CNN/b_cnn_0": np.zeros(4, dtype=np.int64)}, "CNN/b_cnn_0 is not of floating-point numbers"),
            ({"lm/RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/B": np.zeros(1, dtype=np.float32)}, "has unexpected .*Cell2"),
            ({"other/lm/char_embed": np.zeros(1, dtype=np.float32)}, "has 'char_embed' twice"),
            ({"lm/softmax/b": np.zeros(4, dtype=np.float32)}, "lacks softmax/W"),
            ({"x" * 2000: np.zeros(1, dtype=np.float32)}, "a name is too long"),
        ],
    )
    def test_what_does_not_belong_there_is_said(self, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
        weights = write_variables(tmp_path / "run", small_options())
        (tmp_path / "run" / "vocab.txt").write_text("<S>\n</S>\n<UNK>\ncat\n")
        tf_files.write_checkpoint(tmp_path / "run" / "m", weights | changes)
        with pytest.raises(ElmoError, match=message):
            elmo.load(tmp_path / "run")

    def test_sums_of_squares_are_above_zero(self, tmp_path: Path) -> None:
        weights = write_variables(tmp_path / "run", small_options())
        more = {"lm/softmax/W": np.ones((4, 5), np.float32), "lm/softmax/b": np.ones(4, np.float32)}
        sums = {f"{name}/Adagrad": np.zeros_like(value) for name, value in (weights | more).items()}
        tf_files.write_checkpoint(tmp_path / "run" / "m", weights | more | sums)
        config = elmo.load(tmp_path / "run").config
        with pytest.raises(ElmoError, match="a sum of squares that is not above 0"):
            tf_checkpoint.read_accumulators(tmp_path / "run" / "m", config)

    def test_sliced_variables_and_lost_headers_are_refused(self, tmp_path: Path) -> None:
        write_variables(tmp_path / "run", small_options())
        header = tf_files.number(1, 1)
        sliced = tf_files.message(7, b"")
        for entries, message in (
            ({b"": header, b"lm/x": sliced}, "'lm/x' is stored in slices"),
            ({b"lm/x": b""}, "it has no header"),
            ({b"": header + tf_files.number(2, 1)}, "big-endian"),
            ({b"": header, b"x": b"\xff"}, "it is damaged"),
        ):
            tf_files.write_index(tmp_path / "run" / "m.index", entries)
            with pytest.raises(ElmoError, match=message):
                elmo.load(tmp_path / "run")

    def test_a_hub_module_needs_all_of_its_mix_and_its_variables(self, tmp_path: Path) -> None:
        (tmp_path / "hub" / "variables").mkdir(parents=True)
        weights = write_model(tmp_path / "m", small_options())
        bilm = {f"module/bilm/{name}": value for name, value in weights.items()}
        half = {"module/aggregation/weights": np.zeros(3, dtype=np.float32)}
        for tensors, message in (
            (bilm | half, "has only one of aggregation/weights and aggregation/scaling"),
            (half, r"has no RNN_0/RNN/LSTMCell/W_0 of 2 dimensions: it is no ELMo module"),
        ):
            tf_files.write_checkpoint(tmp_path / "hub" / "variables" / "variables", tensors)
            with pytest.raises(ElmoError, match=message):
                elmo.load(tmp_path / "hub")
        tf_files.write_checkpoint(tmp_path / "hub" / "variables" / "variables", bilm)
        expected = elmo.load(tmp_path / "m").embed(["the cat"])[0]
        assert np.array_equal(elmo.load(tmp_path / "hub").embed(["the cat"])[0], expected)


class TestDamaged:
    def test_options_of_another_architecture(self, checkpoint: Path) -> None:
        for lstm, message in (({"n_layers": 3}, "lacks .*Cell2"), ({"dim": 13}, r"has shape \(10, 48\)")):
            (checkpoint / "options.json").write_text(json.dumps(small_options(**lstm)))
            with pytest.raises(ElmoError, match=message):
                elmo.load(checkpoint)

    def test_a_data_file_that_is_missing_or_cut(self, checkpoint: Path) -> None:
        whole = (checkpoint / DATA).read_bytes()
        (checkpoint / DATA).write_bytes(whole[:-100])
        with pytest.raises(ElmoError, match="missing, cut off, or of another checkpoint"):
            elmo.load(checkpoint)
        (checkpoint / DATA).unlink()
        with pytest.raises(ElmoError, match="missing, cut off, or of another checkpoint"):
            elmo.load(checkpoint)

    def test_nan(self, checkpoint: Path) -> None:
        content = bytearray((checkpoint / DATA).read_bytes())
        content[8:12] = struct.pack("<f", float("nan"))
        (checkpoint / DATA).write_bytes(content)
        with pytest.raises(ElmoError, match="holds NaN or infinity"):
            elmo.load(checkpoint)

    def test_a_changed_index_has_a_wrong_checksum(self, checkpoint: Path) -> None:
        content = bytearray((checkpoint / INDEX).read_bytes())
        content[10] ^= 1
        (checkpoint / INDEX).write_bytes(content)
        with pytest.raises(ElmoError, match="a checksum is wrong"):
            elmo.load(checkpoint)

    def test_compressed_blocks_are_refused_with_what_to_do(self, checkpoint: Path) -> None:
        content = bytearray((checkpoint / INDEX).read_bytes())
        _, index = tensor_bundle._handle(bytes(content), len(content) - 48)
        (offset, length), _ = tensor_bundle._handle(bytes(content), index)
        content[offset + length] = 1
        (checkpoint / INDEX).write_bytes(content)
        with pytest.raises(ElmoError, match="blocks are compressed"):
            elmo.load(checkpoint)

    def test_something_else(self, checkpoint: Path) -> None:
        (checkpoint / INDEX).write_bytes(b"x" * 100)
        with pytest.raises(ElmoError, match="no whole index of a TensorFlow checkpoint"):
            elmo.load(checkpoint)
