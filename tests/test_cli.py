"""The command as a user meets it: what it prints, what it writes, how it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
import torch

import elmo
from conftest import heed_interrupts, run_elmo, small_options, write_model
from elmo import cli


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, small_options())
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("the cat sat\n\nü 日本\n", encoding="utf-8")
    return path


class TestEmbed:
    def test_a_file_into_an_hdf5_file(self, folder: Path, text: Path, tmp_path: Path) -> None:
        result = run_elmo("embed", text, "-o", tmp_path / "out.hdf5", "--model", folder, "--layers", "all")
        assert result.returncode == 0, result.stderr
        assert result.stdout == b""
        assert b"3 sentences, 5 tokens" in result.stderr
        expected = elmo.load(folder).embed(["the cat sat", "", "ü 日本"], layers="all")
        with h5py.File(tmp_path / "out.hdf5") as file:
            for i, vectors in enumerate(expected):
                np.testing.assert_allclose(file[str(i)][...], vectors, atol=1e-6)

    def test_standard_input_to_standard_output(self, folder: Path) -> None:
        result = run_elmo("embed", "-", "--model", folder, "--layers", "0,2", stdin="the cat\nü\n".encode())
        assert result.returncode == 0, result.stderr
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        assert [row["tokens"] for row in rows] == [["the", "cat"], ["ü"]]
        expected = elmo.load(folder).embed(["the cat", "ü"], layers=[0, 2])
        for row, vectors in zip(rows, expected, strict=True):
            np.testing.assert_allclose(row["vectors"], vectors, atol=1e-6)

    def test_the_embedded_model_is_the_default(self) -> None:
        result = run_elmo("embed", "-", "--pool", "mean", "--layers", "1", stdin=b"a b\n")
        assert len(json.loads(result.stdout)["vectors"]) == elmo.load().config.dim

    def test_raw_text_is_tokenised_on_request(self, folder: Path) -> None:
        pytest.importorskip("spacy", reason="tokenising needs spaCy")
        result = run_elmo("embed", "-", "-m", folder, "--tokenize", "--pool", "max", stdin=b"I can't. Why?\n\nNo.\n")
        assert result.returncode == 0, result.stderr
        tokens = [json.loads(line)["tokens"] for line in result.stdout.splitlines()]
        assert tokens == [["I", "ca", "n't", "."], ["Why", "?"], ["No", "."]]

    def test_verbose_says_what_was_used(self, folder: Path, text: Path, tmp_path: Path) -> None:
        result = run_elmo("embed", text, "-o", tmp_path / "o.npz", "-m", folder, "-v")
        assert b"precision fp32, device cpu, 5 tokens in" in result.stderr
        assert b"cache" in result.stderr

    def test_invalid_bytes_are_replaced_on_request(self, folder: Path) -> None:
        result = run_elmo("embed", "-", "-m", folder, "--errors", "replace", "--pool", "mean", stdin=b"a\xffb \0\n")
        assert json.loads(result.stdout)["tokens"] == ["a\ufffdb", "\ufffd"]

    def test_a_reader_that_goes_away_is_no_disaster(self, folder: Path) -> None:
        command = f"yes the cat | head -20000 | {sys.executable} -m elmo embed - -m {folder} | head -1 | wc -l"
        result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=120)
        assert result.stdout.strip() == b"1"
        assert b"Traceback" not in result.stderr


class TestRefusals:
    """One clear message, exit code 2, nothing half-written."""

    def refused(self, tmp_path: Path, *arguments: object, stdin: bytes = b"") -> str:
        before = sorted(tmp_path.rglob("*"))
        result = run_elmo(*arguments, stdin=stdin)
        message = result.stderr.decode()
        assert result.returncode == 2, message
        assert message.startswith(("error: ", "Usage: "))
        assert "Traceback" not in message
        assert result.stdout == b""
        assert sorted(tmp_path.rglob("*")) == before
        return message

    def test_a_missing_file(self, tmp_path: Path) -> None:
        message = self.refused(tmp_path, "embed", tmp_path / "no.txt", "-o", tmp_path / "o.hdf5")
        assert "cannot read" in message
        assert "no.txt: No such file or directory" in message

    def test_a_missing_model(self, text: Path, tmp_path: Path) -> None:
        message = self.refused(tmp_path, "embed", text, "-o", tmp_path / "o.hdf5", "-m", tmp_path / "no")
        assert "there is no model at" in message

    @pytest.mark.parametrize("command", ["info", "convert", "embed"])
    def test_a_model_that_is_no_hdf5(self, command: str, text: Path, tmp_path: Path) -> None:
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / "options.json").write_text("{}")
        (tmp_path / "m" / "w.hdf5").write_text("oh")
        arguments = {
            "info": ["info", tmp_path / "m"],
            "convert": ["convert", tmp_path / "m", tmp_path / "out"],
            "embed": ["embed", text, "-o", tmp_path / "o.hdf5", "-m", tmp_path / "m"],
        }[command]
        assert "w.hdf5 is not an HDF5 file" in self.refused(tmp_path, *arguments)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--precision", "fp8"], "precision is 'fp8'"),
            (["--layers", "3"], "a list of numbers, from 0 to 2"),
            (["--layers", "0,x"], "layers is '0,x'"),
            (["--pool", "sum"], "pool is 'sum'"),
            (["--state", "warm"], "no warm start state"),
            (["--format", "csv"], "format is 'csv'"),
            (["--format", "npz", "--sentence-to-index"], "sentence_to_index"),
            (["--batch-tokens", "0"], "batch_tokens is 0"),
            (["--errors", "ignore"], "errors is 'ignore'"),
            (["--device", "cuda:99"], "device is 'cuda:99'"),
            (["--resume", "--overwrite"], "contradict"),
            (["--nonsense"], "No such option"),
            (["--batch-size", "many"], "Invalid value for '--batch-size'"),
        ],
    )
    def test_a_wrong_option(self, arguments: list[str], message: str, folder: Path, text: Path, tmp_path: Path) -> None:
        assert message in self.refused(tmp_path, "embed", text, "-o", tmp_path / "o.hdf5", "-m", folder, *arguments)

    @pytest.mark.parametrize(("line", "message"), [(b"a\xff", "line 3: not UTF-8"), (b"\0", "line 3: a NUL byte")])
    def test_a_line_that_is_no_text(self, line: bytes, message: str, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "in.txt").write_bytes(b"one\ntwo\n" + line + b"\nfour\n")
        assert message in self.refused(tmp_path, "embed", tmp_path / "in.txt", "-o", tmp_path / "o.hdf5", "-m", folder)

    def test_an_output_that_exists(self, folder: Path, text: Path, tmp_path: Path) -> None:
        out = tmp_path / "o.jsonl"
        out.write_text("precious")
        assert "exists: --overwrite replaces it" in self.refused(tmp_path, "embed", text, "-o", out, "-m", folder)
        assert out.read_text() == "precious"

    def test_an_output_that_cannot_be_written(self, folder: Path, text: Path, tmp_path: Path) -> None:
        message = self.refused(tmp_path, "embed", text, "-o", tmp_path / "no" / "o.hdf5", "-m", folder)
        assert "cannot write" in message
        assert "No such file or directory" in message

    def test_an_output_that_is_a_folder(self, folder: Path, text: Path, tmp_path: Path) -> None:
        (tmp_path / "d.hdf5").mkdir()
        assert "is a folder" in self.refused(tmp_path, "embed", text, "-o", tmp_path / "d.hdf5", "-m", folder)

    @pytest.mark.parametrize("command", ["vocab", "embed"])
    def test_an_output_that_is_a_pipe(self, command: str, text: Path, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.npz")
        message = self.refused(tmp_path, command, text, "-o", tmp_path / "pipe.npz", "--overwrite")
        assert "is no plain file: give the name of a file" in message

    def test_an_output_of_unknown_format(self, text: Path, tmp_path: Path) -> None:
        assert "say the format (--format)" in self.refused(tmp_path, "embed", text, "-o", tmp_path / "o.bin")

    @pytest.mark.parametrize("option", ["--workers", "--part-mb"])
    def test_an_option_of_another_engine_even_if_it_is_zero(self, option: str, text: Path, tmp_path: Path) -> None:
        message = self.refused(tmp_path, "embed", text, "-o", tmp_path / "o.npz", option, "0")
        assert f"{option} " in message

    @pytest.mark.parametrize("arguments", [["--format", "hdf5"], ["--resume"]])
    def test_standard_output_has_its_limits(self, arguments: list[str], text: Path, tmp_path: Path) -> None:
        assert "needs a file: give one with -o" in self.refused(tmp_path, "embed", text, *arguments)

    def test_resuming_with_other_settings(self, folder: Path, text: Path, tmp_path: Path) -> None:
        out = tmp_path / "o.hdf5"
        assert run_elmo("embed", text, "-o", out, "-m", folder).returncode == 0
        message = self.refused(tmp_path, "embed", text, "-o", out, "-m", folder, "--layers", "top", "--resume")
        assert "layers was 'average' and is 'top' now" in message

    @pytest.mark.parametrize(
        ("command", "message"),
        [
            ("embed - -o OUT <&-", "standard input is closed"),
            ("embed IN >&-", "standard output is closed"),
            ("embed IN > /dev/full", "No space left on device"),
            ("info > /dev/full", "No space left on device"),
            ("embed /proc/self/mem -o OUT", "cannot read /proc/self/mem"),
        ],
    )
    def test_streams_that_fail(self, command: str, message: str, text: Path, tmp_path: Path) -> None:
        line = command.replace("IN", str(text)).replace("OUT", str(tmp_path / "out.npz"))
        result = subprocess.run(
            ["bash", "-c", f"exec {sys.executable} -m elmo {line}"], capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 2, result.stderr
        assert result.stderr.count("\n") == 1
        assert message in result.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]

    def test_converting_onto_something_that_exists(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        assert "exists" in self.refused(tmp_path, "convert", folder, tmp_path / "out")


class TestInfo:
    def test_for_people(self, folder: Path) -> None:
        output = run_elmo("info", folder).stdout.decode()
        assert "bilm-tf" in output
        assert "12 cells, 5 out, projected, skip connections" in output

    def test_for_programs(self, folder: Path) -> None:
        facts = json.loads(run_elmo("info", folder, "--json").stdout)
        assert facts["layers"] == 3
        assert facts["dim"] == 10
        assert facts["states"] == ["zero", "carry"]
        assert "fp32" in facts["precisions here"]
        assert facts["auto precision"] == "fp32"  # a small model gains nothing from less
        weights = sum(p.numel() for p in elmo.load(folder).bilm.parameters())
        assert facts["parameters"] == weights - 4  # the mask's row is not a parameter

    def test_of_the_embedded_model(self) -> None:
        assert b"embedded" in run_elmo("info").stdout

    def test_says_the_stored_precision_and_the_size_on_disk(self, folder: Path, tmp_path: Path) -> None:
        assert json.loads(run_elmo("info", folder, "--json").stdout)["stored precision"] == "float32"
        assert run_elmo("convert", folder, tmp_path / "m", "--dtype", "int8").returncode == 0
        facts = json.loads(run_elmo("info", tmp_path / "m", "--json").stdout)
        assert facts["stored precision"] == "int8"
        assert facts["bytes on disk"] == sum(path.stat().st_size for path in (tmp_path / "m").iterdir())


class TestConvert:
    def test_there_and_back(self, folder: Path, tmp_path: Path) -> None:
        assert run_elmo("convert", folder, tmp_path / "a").returncode == 0
        assert run_elmo("convert", tmp_path / "a", tmp_path / "b", "--format", "bilm-tf").returncode == 0
        one, other = (h5py.File(path / "weights.hdf5") for path in (folder, tmp_path / "b"))
        with one, other:
            assert np.array_equal(one["CNN_proj/W_proj"], other["CNN_proj/W_proj"])

    def test_with_a_card_of_ones_own(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "card.md").write_text("# Näheres\n", encoding="utf-8")
        assert run_elmo("convert", folder, tmp_path / "m", "--card", tmp_path / "card.md").returncode == 0
        assert elmo.load(tmp_path / "m").card == "# Näheres\n"
        (tmp_path / "card.md").write_bytes(b"\xff")
        for card, message in (
            (tmp_path / "no.md", b"cannot read --card"),
            (tmp_path / "card.md", b"is not UTF-8 text"),
        ):
            result = run_elmo("convert", folder, tmp_path / "n", "--card", card)
            assert result.returncode == 2
            assert message in result.stderr
            assert not (tmp_path / "n").exists()

    def test_into_small_files_of_another_precision(self, folder: Path, tmp_path: Path) -> None:
        result = run_elmo("convert", folder, tmp_path / "m", "--dtype", "bfloat16", "--max-file-mb", 0.01)
        assert result.returncode == 0, result.stderr
        assert len(list((tmp_path / "m").glob("model-*.safetensors"))) > 1
        again = run_elmo("convert", tmp_path / "m", tmp_path / "b", "--format", "bilm-tf", "--dtype", "int8")
        assert again.returncode == 2
        assert b"bilm-tf is one file of float32" in again.stderr

    def test_a_warm_start_state_is_added(self, folder: Path, text: Path, tmp_path: Path) -> None:
        assert run_elmo("convert", folder, tmp_path / "w", "--warm-with", text).returncode == 0
        assert json.loads(run_elmo("info", tmp_path / "w", "--json").stdout)["states"] == ["zero", "carry", "warm"]
        result = run_elmo("embed", text, "-m", tmp_path / "w", "--state", "warm")
        assert result.returncode == 0, result.stderr

    def test_what_the_format_cannot_hold_is_said(self, folder: Path, text: Path, tmp_path: Path) -> None:
        result = run_elmo("convert", folder, tmp_path / "w", "--warm-with", text, "--format", "bilm-tf")
        assert b"no place for the warm start state" in result.stderr


def test_an_interrupted_run_says_how_to_go_on(folder: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "elmo", "embed", "-", "-o", str(tmp_path / "o.npz"), "-m", str(folder), "-q"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_interrupts,
    )
    assert process.stdin is not None
    process.stdin.write(b"the cat\n" * 1000)
    process.stdin.flush()
    while not list(tmp_path.glob("o.npz.partial/part-*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode not in (0, 2)
    assert b"the same command with --resume goes on" in error
    assert b"Traceback" not in error


def test_what_is_printed_into_a_pipe_is_utf8_whatever_the_locale(folder: Path) -> None:
    printed = run_elmo(
        "embed", "-", "-m", folder, stdin="日本 café\n".encode(), environment={"PYTHONIOENCODING": "latin-1"}
    )
    assert printed.returncode == 0, printed.stderr
    assert json.loads(printed.stdout.decode("utf-8"))["tokens"] == ["日本", "café"]


def test_too_little_memory_is_an_error_that_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cli, "app", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith("error: CUDA out of memory: smaller batches")
        on_cpu = "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"
        patched.setattr(cli, "app", Mock(side_effect=RuntimeError(on_cpu)))
        with pytest.raises(SystemExit):
            cli.main()
        assert capsys.readouterr().err.startswith("error: out of memory: smaller batches")
        patched.setattr(cli, "app", Mock(side_effect=RuntimeError("a bug")))
        with pytest.raises(RuntimeError, match="a bug"):
            cli.main()


def test_version() -> None:
    assert run_elmo("--version").stdout.decode().strip() == f"elmo {elmo.__version__}"


class TestPretrain:
    CONFIG = """
        [model.lstm]
        dim = 12
        projection_dim = 5
        [model.char_cnn]
        embedding = { dim = 4 }
        filters = [[1, 4], [2, 8]]
        [data]
        rows = 4
        unroll_steps = 5
        [softmax]
        samples = 5
        [train]
        steps = 6
        validate_every = 3
    """

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "config.toml").write_text(self.CONFIG)
        documents = [f"cat {number} sat on the mat .\nit purred .\n" for number in range(30)]
        (tmp_path / "text.txt").write_text("\n".join(documents))
        done = run_elmo("prepare", "text.txt", "-o", "corpus", "--valid-share", "0.2", "-q", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return tmp_path

    def test_trains_on_what_prepare_made_and_leaves_a_model_with_its_head(self, folder: Path) -> None:
        done = run_elmo("pretrain", "config.toml", "--corpus", "corpus", "-o", "run", cwd=folder)
        assert done.returncode == 0, done.stderr
        assert b"run/model: held-out perplexity" in done.stderr
        facts = json.loads(run_elmo("info", folder / "run" / "model", "--json").stdout)
        assert facts["language model head"] == f"yes, {facts['vocabulary']:,} words"
        again = run_elmo("pretrain", "config.toml", "--corpus", "corpus", "-o", "run", cwd=folder)
        assert again.returncode == 2
        assert b"--resume goes on with it" in again.stderr
        resumed = run_elmo(
            "pretrain",
            "config.toml",
            "--corpus",
            "corpus",
            "-o",
            "run",
            "--resume",
            "--set",
            "train.steps=9",
            cwd=folder,
        )
        assert resumed.returncode == 0, resumed.stderr
        assert b'"step": 9' in (folder / "run" / "metrics.jsonl").read_bytes()

    def test_a_mistake_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "config.toml").write_text(self.CONFIG)
        done = run_elmo("pretrain", "config.toml", "-o", "run", "--set", "train.stepps=9", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr == b"error: config.toml: unknown setting train.stepps: did you mean train.steps?\n"
        assert not (tmp_path / "run").exists()
