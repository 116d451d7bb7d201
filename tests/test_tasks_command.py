"""`elmo task NAME` and `elmo predict` as users call them: options that reach the model, mistakes, runs that are cut."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import run_elmo, small_options, write_model
from test_tasks_kit import sentences


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_model(folder / "bilm", small_options())
    for name, seed in (("train", 0), ("dev", 1)):
        texts = (
            "".join(f"{t}\t{g}\n" for t, g in zip(one.tokens, one.tags, strict=True)) for one in sentences(40, seed)
        )
        (folder / f"{name}.conll").write_text("\n".join(texts))
    return folder


def command(files: Path, *more: object, epochs: int = 1) -> list[object]:
    sets = ["model.hidden=16", "model.layers=1", f"train.epochs={epochs}", "train.batch_size=8"]
    chosen = [part for one in sets for part in ("--set", one)]
    return ["task", "ner", "--train", files / "train.conll", "--dev", files / "dev.conll", *chosen, *more]


@pytest.fixture(scope="module")
def tagger(files: Path) -> Path:
    out = files / "tagger"
    result = run_elmo(*command(files, "--elmo", "none", "--vectors", "none", "-o", out, epochs=5))
    assert result.returncode == 0, result.stderr
    return out


class TestOptions:
    def test_each_reaches_the_model(self, files: Path) -> None:
        given = ["--elmo", "both", "--layers", "1", "--lambda", "0.5", "--layer-norm", "--train-bilm", "--seed", "3"]
        result = run_elmo(*command(files, *given, "--vectors", "none", "--model", files / "bilm", "--json", "--quiet"))
        assert result.returncode == 0, result.stderr
        config: dict[str, Any] = json.loads(result.stdout)["config"]
        assert config["seed"] == 3
        wanted = {"elmo": "both", "layers": "1", "penalty": 0.5, "layer_norm": True, "train_bilm": True}
        assert {name: config["encoder"][name] for name in (*wanted, "vectors")} == wanted | {"vectors": "none"}
        assert json.loads(result.stdout)["layer_weights"] == {"input": [1.0], "output": [1.0]}

    def test_what_would_do_nothing_without_elmo_is_refused(self, files: Path) -> None:
        idle = ["--lambda", "0.1", "--model", files / "bilm", "--layers", "top", "--layer-norm", "--train-bilm"]
        result = run_elmo(*command(files, "--elmo", "none", *idle))
        assert result.returncode == 2
        assert b"no use for --lambda, --model, --layers, --layer-norm, --train-bilm" in result.stderr

    def test_a_device_that_is_not_here_is_a_mistake(self, files: Path, tagger: Path) -> None:
        for arguments in (command(files, "--elmo", "none"), ["predict", tagger, "-"]):
            result = run_elmo(*arguments, "--device", "meta")
            assert result.returncode == 2
            assert b"device is 'meta', which cannot be used here" in result.stderr

    def test_a_model_that_learned_nothing_says_so(self, files: Path, tmp_path: Path) -> None:
        (tmp_path / "dev.conll").write_text("saw\tO\nBob\tB-ORG\n")  # a kind that training does not have
        arguments = command(files, "--elmo", "none", "--vectors", "none")
        arguments[arguments.index("--dev") + 1] = tmp_path / "dev.conll"
        result = run_elmo(*arguments)
        assert result.returncode == 0
        assert b"nothing on the development set is right" in result.stderr


class TestFolder:
    def test_a_slash_behind_its_name_changes_nothing(self, files: Path, tmp_path: Path) -> None:
        result = run_elmo(*command(files, "--elmo", "none", "--vectors", "none", "-o", f"{tmp_path}/new/"))
        assert result.returncode == 0, result.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["new"]

    def test_a_run_that_is_interrupted_says_how_to_go_on_and_does(self, files: Path, tmp_path: Path) -> None:
        out = tmp_path / "ner"
        arguments = command(files, "--elmo", "none", "--vectors", "none", "-o", out, epochs=30)
        arguments += ["--set", "train.patience=0"]
        process = subprocess.Popen(
            [sys.executable, "-m", "elmo", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started = time.monotonic()
        while not (tmp_path / "ner.training" / "last.safetensors").exists():
            assert process.poll() is None
            assert time.monotonic() < started + 120
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 130
        assert f"the same command with --resume goes on with {out}".encode() in errors
        assert not out.exists()
        result = run_elmo(*arguments, "--resume")
        assert result.returncode == 0, result.stderr
        assert b"of 30 epochs" in result.stdout
        assert out.is_dir()


class TestPredict:
    def test_a_file_and_standard_input_are_read_alike(self, tagger: Path, tmp_path: Path) -> None:
        text = "in\u2028N2\nsaw N1\x0bJr\x0c.\r\n\nin N3\x85".encode()
        (tmp_path / "text").write_bytes(text)
        there, here = run_elmo("predict", tagger, tmp_path / "text"), run_elmo("predict", tagger, "-", stdin=text)
        assert there.returncode == here.returncode == 0, here.stderr
        assert there.stdout == here.stdout
        assert here.stdout.count(b"\n") == 3

    def test_what_is_no_text_is_a_mistake(self, tagger: Path, tmp_path: Path) -> None:
        (tmp_path / "text").write_bytes(b"in N2\na \xff\n")
        for result in (
            run_elmo("predict", tagger, tmp_path / "text"),
            run_elmo("predict", tagger, "-", stdin=b"in N2\na \xff\n"),
        ):
            assert result.returncode == 2
            assert b"line 2" in result.stderr
            assert b"UTF-8" in result.stderr


class TestWhole:
    def test_a_model_is_trained_saved_and_answers(self, files: Path, tmp_path: Path) -> None:
        out = tmp_path / "ner"
        given = ["--model", files / "bilm", "--vectors", "none", "--set", "optimizer.rate=0.02"]
        result = run_elmo(*command(files, *given, "-o", out, "--test", files / "dev.conll", epochs=5))
        assert result.returncode == 0, result.stderr
        assert b"test precision" in result.stdout
        assert sorted(path.name for path in out.iterdir()) == ["bilm", "model.safetensors", "task.json", "words.json"]
        assert not (tmp_path / "ner.training").exists()
        said = run_elmo("predict", out, "-", stdin=b"saw N1 Jr in N2\n\n")
        assert said.stdout == b"saw [PER N1 Jr] in [LOC N2]\n", said.stderr
        raw = run_elmo("predict", out, "-", "--tokenize", stdin=b"In N2. In N2!\n\nIn N2\n")
        assert raw.stdout.count(b"N2") == 3, raw.stderr
        lines = run_elmo("predict", out, "-", "--json", stdin=b"in N2\n").stdout
        assert json.loads(lines) == {"tokens": ["in", "N2"], "tags": ["O", "B-LOC"]}

    def test_a_folder_that_has_the_embedded_models_name_is_stored(self, files: Path, tmp_path: Path) -> None:
        shutil.copytree(files / "bilm", tmp_path / "default")
        given = command(files, "--model", "default", "--vectors", "none", "-o", "out")
        assert run_elmo(*given, cwd=tmp_path).returncode == 0
        assert (tmp_path / "out" / "bilm").is_dir()
        shutil.rmtree(tmp_path / "default")
        assert run_elmo("predict", "out", "-", stdin=b"in N2\n", cwd=tmp_path).returncode == 0

    def test_many_are_answered_in_their_order(self, tagger: Path) -> None:
        numbers = [f"in N{n}" for n in range(7)]
        script = "import elmo.tasks.train_command as c; c._ANSWERED_AT_ONCE = 3; from elmo.cli import main; main()"
        said = subprocess.run(
            [sys.executable, "-c", script, "predict", str(tagger), "-", "--json"],
            input="\n".join(numbers),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert [" ".join(json.loads(line)["tokens"]) for line in said.stdout.splitlines()] == numbers, said.stderr

    def test_mistakes_are_said(self, files: Path, tmp_path: Path) -> None:
        bad = tmp_path / "bad.conll"
        bad.write_text("Ann\tB-PER\nran\n")
        for arguments, message in (
            (["task", "ner", "--train", bad, "--dev", bad], b"bad.conll, line 2: found 1 columns"),
            (command(files, "--resume"), b"give -o OUT"),
            (command(files, "-o", files), b"exists: give another folder"),
            (["predict", tmp_path, "-"], b"is no task model"),
        ):
            result = run_elmo(*arguments)
            assert result.returncode == 2
            assert message in result.stderr
