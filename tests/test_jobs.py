from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet
import pytest

import elmo
import elmo.embed as embed_module
from conftest import run_elmo, small_options, write_model
from elmo.embed import Embedder, EmbedSettings
from elmo.errors import ElmoError
from elmo.jobs import Parts, Progress, embed_file
from elmo.sinks import FileFormat

SENTENCES = [[f"w{n % 37}" for n in range(i, i + i % 9)] for i in range(150)]
FORMATS: list[FileFormat] = ["hdf5", "npz", "jsonl", "parquet"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> elmo.Model:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, small_options())
    return elmo.load(folder)


def embedder(model: elmo.Model, **settings: Any) -> Embedder:
    return Embedder(model, EmbedSettings(**({"batch_tokens": 64} | settings)))


def read(path: Path) -> list[Any]:
    """All arrays of a file, in order, read with the tools that a user has."""
    if path.suffix == ".hdf5":
        with h5py.File(path) as file:
            return [file[key][...] for key in sorted((k for k in file if k.isdigit()), key=int)]
    if path.suffix == ".npz":
        with np.load(path) as file:
            return [file[key] for key in sorted(file.files, key=int)]
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    else:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    assert [row["index"] for row in rows] == list(range(len(rows)))
    assert [row["tokens"] for row in rows] == SENTENCES[: len(rows)]
    return [np.asarray(row["vectors"]) for row in rows]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "settings", [{}, {"layers": "all"}, {"pool": "mean"}, {"layers": [0, 1], "pool": "max"}, {"layers": "mix"}]
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_file_holds_what_the_embedder_yields(
    model: elmo.Model, tmp_path: Path, format: FileFormat, settings: dict[str, Any], dtype: str
) -> None:
    out = tmp_path / f"out.{format}"
    done = embed_file(embedder(model, **settings, dtype=dtype), SENTENCES, out, format=format)
    assert (done.sentences, done.tokens) == (len(SENTENCES), sum(map(len, SENTENCES)))
    expected = list(embedder(model, **settings, dtype=dtype).embed_iter(SENTENCES))
    for ours, theirs in zip(read(out), expected, strict=True):
        assert ours.size == theirs.size
        assert np.array_equal(ours.reshape(theirs.shape), theirs)
    assert sorted(path.name for path in tmp_path.iterdir()) == [out.name]


def test_hdf5_has_the_peers_layout(model: elmo.Model, tmp_path: Path) -> None:
    embed_file(embedder(model, layers="all"), SENTENCES[:5], tmp_path / "o.hdf5", sentence_to_index=True)
    with h5py.File(tmp_path / "o.hdf5") as file:
        assert sorted(file) == ["0", "1", "2", "3", "4", "sentence_to_index"]
        assert [file[str(i)].shape for i in range(5)] == [(3, i, 10) for i in range(5)]
        assert file["0"].dtype == np.float32
        index = json.loads(file["sentence_to_index"][0])
    assert index == {" ".join(tokens): str(i) for i, tokens in enumerate(SENTENCES[:5])}


@pytest.mark.parametrize("format", FORMATS)
def test_no_sentences_make_an_empty_file(model: elmo.Model, tmp_path: Path, format: FileFormat) -> None:
    out = tmp_path / f"out.{format}"
    assert embed_file(embedder(model), [], out, format=format) == Progress()
    assert read(out) == []


def test_sentences_may_be_strings_and_the_path_too(model: elmo.Model, tmp_path: Path) -> None:
    done = embed_file(embedder(model), ["the cat", ["sat"]], str(tmp_path / "out.npz"))
    assert (done.sentences, done.tokens) == (2, 3)


def test_half_a_surrogate_pair_is_refused_before_all_is_embedded(model: elmo.Model, tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match="sentence 1 has half a surrogate pair"):
        embed_file(embedder(model), ["the cat", ["\ud800"]], tmp_path / "out.jsonl")


class CutError(Exception):
    pass


def cut_after(count: int) -> Iterator[list[str]]:
    yield from SENTENCES[:count]
    raise CutError


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("settings", [{}, {"state": "carry", "batch_size": 7}, {"layers": "all", "pool": "mean"}])
def test_a_run_that_was_cut_goes_on_to_the_same_bytes(
    model: elmo.Model, tmp_path: Path, format: FileFormat, settings: dict[str, Any]
) -> None:
    whole, cut = tmp_path / f"whole.{format}", tmp_path / f"cut.{format}"
    embed_file(embedder(model, **settings), SENTENCES, whole, format=format)
    for count in (60, 20, 110):  # cut three times, once before the place that was reached already
        with pytest.raises(CutError):
            embed_file(embedder(model, **settings), cut_after(count), cut, format=format, resume=count != 60)
        if count == 20:
            continue
        assert not cut.exists()
    embed_file(embedder(model, **settings), SENTENCES, cut, format=format, resume=True)
    assert cut.read_bytes() == whole.read_bytes()
    assert not (tmp_path / f"cut.{format}.partial").exists()


@pytest.mark.parametrize("settings", [{}, {"state": "carry", "batch_size": 7}, {"layers": "all", "pool": "mean"}])
def test_so_does_one_on_a_device_that_is_not_waited_for(
    model: elmo.Model, tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed_module, "_CPU", replace(embed_module._CPU, ahead=2))
    embed_file(embedder(model, **settings), SENTENCES, tmp_path / "whole.npz")
    with pytest.raises(CutError):
        embed_file(embedder(model, **settings), cut_after(60), tmp_path / "cut.npz")
    embed_file(embedder(model, **settings), SENTENCES, tmp_path / "cut.npz", resume=True)
    assert (tmp_path / "cut.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_what_is_left_to_the_device_is_noted_as_it_was_chosen(
    model: elmo.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.hdf5"
    embed_file(Embedder(model, EmbedSettings()), SENTENCES, out)
    embed_file(Embedder(model, EmbedSettings(batch_tokens=2048)), SENTENCES, out, resume=True)
    monkeypatch.setattr(embed_module, "_CPU", embed_module._GPU)
    with pytest.raises(ElmoError, match="batch_tokens was 2048 and is 16384 now"):
        embed_file(Embedder(model, EmbedSettings()), SENTENCES, out, resume=True)


def test_going_on_embeds_only_what_is_missing(model: elmo.Model, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    with pytest.raises(CutError):
        embed_file(embedder(model), cut_after(100), out, format="npz")
    reports: list[Progress] = []
    embed_file(embedder(model), SENTENCES, out, format="npz", resume=True, report=reports.append)
    assert 60 < reports[0].sentences < 100
    assert reports[-1].sentences == len(SENTENCES)


class TestWhatIsThereAlready:
    def test_a_file_is_replaced_only_when_told(self, model: elmo.Model, tmp_path: Path) -> None:
        out = tmp_path / "out.hdf5"
        embed_file(embedder(model), SENTENCES[:3], out)
        before = out.read_bytes()
        with pytest.raises(ElmoError, match=r"out\.hdf5 exists: --overwrite replaces it"):
            embed_file(embedder(model), SENTENCES, out)
        assert out.read_bytes() == before
        embed_file(embedder(model), SENTENCES, out, overwrite=True)
        assert len(read(out)) == len(SENTENCES)

    def test_what_is_left_of_a_run_is_not_thrown_away_unasked(self, model: elmo.Model, tmp_path: Path) -> None:
        out = tmp_path / "out.hdf5"
        with pytest.raises(CutError):
            embed_file(embedder(model), cut_after(60), out)
        with pytest.raises(ElmoError, match="--resume goes on with it, --overwrite starts again"):
            embed_file(embedder(model), SENTENCES, out)
        embed_file(embedder(model, layers="top"), SENTENCES, out, overwrite=True)
        assert len(read(out)) == len(SENTENCES)

    @pytest.mark.parametrize("finished", [False, True])
    @pytest.mark.parametrize("settings", [{"layers": "top"}, {"dtype": "float16"}, {"batch_tokens": 65}])
    def test_other_settings_are_not_mixed_in(
        self, model: elmo.Model, tmp_path: Path, settings: dict[str, Any], finished: bool
    ) -> None:
        out = tmp_path / "out.hdf5"
        if finished:
            embed_file(embedder(model), SENTENCES, out)
        else:
            with pytest.raises(CutError):
                embed_file(embedder(model), cut_after(60), out)
        with pytest.raises(ElmoError, match=f"made with other settings: {next(iter(settings))} was"):
            embed_file(embedder(model, **settings), SENTENCES, out, resume=True)
        embed_file(embedder(model), SENTENCES, out, resume=True)
        assert len(read(out)) == len(SENTENCES)

    def test_another_model_is_not_mixed_in(self, model: elmo.Model, tmp_path: Path) -> None:
        with pytest.raises(CutError):
            embed_file(embedder(model), cut_after(60), tmp_path / "out.hdf5")
        write_model(tmp_path / "m", small_options(), seed=1)
        with pytest.raises(ElmoError, match="other settings: model was"):
            embed_file(embedder(elmo.load(tmp_path / "m")), SENTENCES, tmp_path / "out.hdf5", resume=True)

    @pytest.mark.parametrize("finished", [False, True])
    def test_another_input_is_not_mixed_in(self, model: elmo.Model, tmp_path: Path, finished: bool) -> None:
        out = tmp_path / "out.npz"
        if finished:
            embed_file(embedder(model), SENTENCES, out, format="npz")
        else:
            with pytest.raises(CutError):
                embed_file(embedder(model), cut_after(60), out, format="npz")
        with pytest.raises(ElmoError, match=r"does not begin with the \d+ sentences|input was"):
            embed_file(embedder(model), [["other"], *SENTENCES[1:]], out, format="npz", resume=True)

    @pytest.mark.parametrize("format", ["hdf5", "npz", "parquet"])
    def test_a_finished_file_is_left_as_it_is(self, model: elmo.Model, tmp_path: Path, format: FileFormat) -> None:
        out = tmp_path / f"out.{format}"
        embed_file(embedder(model), SENTENCES, out, format=format)
        written = out.stat().st_mtime_ns
        done = embed_file(embedder(model), SENTENCES, out, format=format, resume=True)
        assert done.sentences == len(SENTENCES)
        assert out.stat().st_mtime_ns == written

    @pytest.mark.parametrize("format", FORMATS)
    def test_a_file_that_does_not_say_what_made_it_is_not_taken_for_ours(
        self, model: elmo.Model, tmp_path: Path, format: FileFormat
    ) -> None:
        out = tmp_path / f"out.{format}"
        out.write_bytes(b"something else")
        with pytest.raises(ElmoError, match="does not say what made it"):
            embed_file(embedder(model), SENTENCES, out, format=format, resume=True)

    def test_a_damaged_part_is_named(self, model: elmo.Model, tmp_path: Path) -> None:
        out = tmp_path / "out.npz"
        with pytest.raises(CutError):
            embed_file(embedder(model), cut_after(60), out, format="npz")
        part = sorted(tmp_path.glob("out.npz.partial/part-*"))[-1]
        part.write_bytes(part.read_bytes()[:100])
        with pytest.raises(ElmoError, match=r"part-.*\.npz is damaged"):
            embed_file(embedder(model), SENTENCES, out, format="npz", resume=True)

    def test_parts_that_nobody_can_tell_of_are_not_taken(self, model: elmo.Model, tmp_path: Path) -> None:
        out = tmp_path / "out.npz"
        with pytest.raises(CutError):
            embed_file(embedder(model), cut_after(60), out)
        (tmp_path / "out.npz.partial" / "settings.json").unlink()
        with pytest.raises(ElmoError, match=r"settings\.json is missing"):
            embed_file(embedder(model, layers="top"), SENTENCES, out, resume=True)

    def test_a_folder_of_other_things_is_not_taken_for_ours(self, model: elmo.Model, tmp_path: Path) -> None:
        (tmp_path / "out.npz.partial").mkdir()
        (tmp_path / "out.npz.partial" / "thesis.txt").touch()
        for choice in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(ElmoError, match=r"holds something else than a run that was cut \(thesis\.txt\)"):
                embed_file(embedder(model), SENTENCES, tmp_path / "out.npz", **choice)  # type: ignore[arg-type]
        assert (tmp_path / "out.npz.partial" / "thesis.txt").exists()

    def test_a_run_killed_while_it_cleaned_up_is_done(self, model: elmo.Model, tmp_path: Path) -> None:
        out = tmp_path / "out.npz"
        with pytest.raises(CutError):
            embed_file(embedder(model), cut_after(60), out)
        parts = tmp_path / "out.npz.partial"
        parts.rename(tmp_path / "kept")
        embed_file(embedder(model), SENTENCES, out)
        (tmp_path / "kept").rename(parts)
        (parts / "garbage").touch()
        (parts / "settings.json").unlink()
        assert embed_file(embedder(model), SENTENCES, out, resume=True).sentences == len(SENTENCES)
        assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]

    def test_what_was_being_put_together_when_the_run_was_killed_goes(
        self, model: elmo.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "out.npz"
        with monkeypatch.context() as patch:
            patch.setattr(Parts, "finish", lambda *_: (_ for _ in ()).throw(CutError))
            with pytest.raises(CutError):
                embed_file(embedder(model), SENTENCES, out)
        assert (tmp_path / "out.npz.partial" / ".assembled").exists()
        embed_file(embedder(model), SENTENCES, out, resume=True)
        assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]

    def test_a_second_run_keeps_its_hands_off(self, model: elmo.Model, tmp_path: Path) -> None:
        out = tmp_path / "out.npz"

        def meddling() -> Iterator[list[str]]:
            yield from SENTENCES[:60]
            for choice in ({"resume": True}, {"overwrite": True}):
                with pytest.raises(ElmoError, match="another run is writing"):
                    embed_file(embedder(model), SENTENCES, out, **choice)  # type: ignore[arg-type]
            yield from SENTENCES[60:]

        embed_file(embedder(model), meddling(), out)
        assert len(read(out)) == len(SENTENCES)

    def test_a_link_is_written_through(self, model: elmo.Model, tmp_path: Path) -> None:
        (tmp_path / "link.npz").symlink_to(tmp_path / "real.npz")
        embed_file(embedder(model), SENTENCES, tmp_path / "link.npz")
        assert (tmp_path / "link.npz").is_symlink()
        assert len(read(tmp_path / "real.npz")) == len(SENTENCES)

    def test_a_pipe_or_device_is_not_replaced(self, model: elmo.Model, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.npz")
        with pytest.raises(ElmoError, match="is no plain file"):
            embed_file(embedder(model), SENTENCES, tmp_path / "pipe.npz", overwrite=True)

    def test_resume_and_overwrite_contradict_each_other(self, model: elmo.Model, tmp_path: Path) -> None:
        with pytest.raises(ElmoError, match="contradict"):
            embed_file(embedder(model), SENTENCES, tmp_path / "o.npz", resume=True, overwrite=True)


def test_a_mistake_found_at_the_start_leaves_nothing_behind(model: elmo.Model, tmp_path: Path) -> None:
    with pytest.raises(CutError):
        embed_file(embedder(model), cut_after(0), tmp_path / "out.hdf5")
    assert list(tmp_path.iterdir()) == []


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # as everywhere here: the last bits depend on it
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


FULL_DISK = """
import resource, sys
from elmo.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.argv = ["elmo", *sys.argv[2:]]
main()
"""


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_loses_nothing_and_the_run_goes_on_later(tmp_path: Path, format: FileFormat) -> None:
    """A limit on a file's size stands in for the disk: large enough for each part, too small for the whole."""
    write_model(tmp_path / "model", small_options())
    text, out = tmp_path / "in.txt", tmp_path / f"out.{format}"
    text.write_text("".join(" ".join(s) + "\n" for s in SENTENCES * 4))
    command = ["embed", text, "-o", out, "-m", tmp_path / "model", "--batch-tokens", 64, "--layers", "all", "-q"]
    result = run_python(FULL_DISK, 150_000, *command)
    assert result.returncode == 2, result.stderr
    assert f"cannot write {out}" in result.stderr
    assert "File too large" in result.stderr
    assert not out.exists()
    parts = len(list(tmp_path.glob("out.*.partial/part-*")))
    assert parts > 5
    assert run_elmo(*command, "--resume").returncode == 0
    assert run_elmo(*command[:2], "-o", tmp_path / f"whole.{format}", *command[4:]).returncode == 0
    assert out.read_bytes() == (tmp_path / f"whole.{format}").read_bytes()


@pytest.mark.parametrize("format", ["native", "bilm-tf"])
def test_a_full_disk_leaves_no_half_model(tmp_path: Path, format: str) -> None:
    write_model(tmp_path / "model", small_options(dim=100, projection_dim=50))
    command = ["convert", tmp_path / "model", tmp_path / "out", "--format", format]
    result = run_python(FULL_DISK, 20_000, *command)
    assert result.returncode == 2, result.stderr
    assert "cannot write" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


MEMORY = """
import resource, sys
from pathlib import Path
import elmo
embedder = elmo.load(sys.argv[1]).embedder(batch_tokens=512)
lines = (f"w{i % 1009} w{i % 13} w{i % 211} w{i % 7} x" for i in range(int(sys.argv[2])))
elmo.embed_file(embedder, lines, sys.argv[3])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_ten_times_the_lines_need_hardly_more_memory(tmp_path: Path) -> None:
    write_model(tmp_path / "model", small_options())
    peaks = []
    for lines in (3_000, 30_000):
        peaks.append(int(run_python(MEMORY, tmp_path / "model", lines, tmp_path / f"{lines}.hdf5").stdout))
    assert peaks[1] <= 1.15 * peaks[0]


def test_a_process_killed_half_way_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    """As a user would see it: SIGKILL to `elmo embed`, then the same command with --resume."""
    write_model(tmp_path / "model", small_options())
    text = tmp_path / "in.txt"
    text.write_text("".join(" ".join(s) + "\n" for s in SENTENCES * 60))
    command = [sys.executable, "-m", "elmo", "embed", str(text), "--model", str(tmp_path / "model"), "-q"]
    command += ["--batch-tokens", "32"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "-o", str(tmp_path / "whole.hdf5")], check=True, env=environment, timeout=300)
    out = tmp_path / "cut.hdf5"
    kills = 0
    for parts in (3, 25):
        process = subprocess.Popen([*command, "-o", str(out), "--resume"], env=environment)
        while process.poll() is None and len(list(tmp_path.glob("cut.hdf5.partial/part-*"))) < parts:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += process.returncode == -signal.SIGKILL
        assert not out.exists()
    assert kills == 2
    subprocess.run([*command, "-o", str(out), "--resume"], check=True, env=environment, timeout=300)
    assert out.read_bytes() == (tmp_path / "whole.hdf5").read_bytes()
