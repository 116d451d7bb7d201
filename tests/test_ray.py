"""`elmo embed --engine ray` under a real Ray on this machine: `make test-ray`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

import elmo
from conftest import run_elmo, small_options, write_model
from elmo.embed import EmbedSettings
from elmo.errors import ElmoError
from elmo.integrations.corpus import Reading
from elmo.integrations.folder import MANIFEST
from elmo.integrations.ray import Done, Pool, embed_corpus

if "ELMO_TEST_RAY" not in os.environ:
    pytest.skip("a heavy dependency: `make test-ray`", allow_module_level=True)
ray = pytest.importorskip("ray", reason="needs the extra: pip install 'elmo[ray]'")

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:ray.*",  # Ray Data warns of settings of its own that it makes itself
)

SENTENCES = [" ".join(f"w{n % 37}" for n in range(i, i + i % 9)) for i in range(400)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Any:
    """One for all tests of this process."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> elmo.Model:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, small_options())
    return elmo.load(folder)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    return path


def embed(model: elmo.Model, texts: list[Path], out: Path, **options: Any) -> Done:
    reading = Reading(**({"part_bytes": 1000} | options.pop("reading", {})))
    settings = EmbedSettings(**options.pop("settings", {}))
    return embed_corpus(
        model,
        [str(text) for text in texts],
        str(out),
        settings=settings,
        reading=reading,
        pool=Pool(workers=2),
        **options,
    )


def parts_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*.parquet"))}


@pytest.mark.parametrize("settings", [{}, {"layers": "all"}, {"pool": "mean", "dtype": "float16"}])
def test_the_folder_has_what_one_process_gives_in_order(
    model: elmo.Model, text: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    whole = embed(model, [text], tmp_path / "out", settings=settings)
    assert (whole.records, whole.words) == (len(SENTENCES), sum(len(s.split()) for s in SENTENCES))
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()  # as a user reads it: the whole folder
    assert [row["index"] for row in rows] == list(range(len(SENTENCES)))
    assert [row["tokens"] for row in rows] == [sentence.split() for sentence in SENTENCES]
    for row, expected in zip(rows, model.embed(SENTENCES, **settings), strict=True):
        np.testing.assert_allclose(np.reshape(row["vectors"], expected.shape), expected, atol=1e-5)
    assert whole.parts == len(parts_of(tmp_path / "out")) > 5


def test_records_keep_their_keys_and_raw_text_is_split(model: elmo.Model, tmp_path: Path) -> None:
    pytest.importorskip("spacy", reason="raw text needs it")
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"key": "x", "body": "It rained. We left."}\n{"key": "y", "body": ""}\n{"key": 7, "body": "So?"}\n'
    )
    embed(model, [path], tmp_path / "out", reading={"field": "body", "id": "key", "language": "en"})
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    found = [(row["index"], row["id"], row["sentence"], row["tokens"]) for row in rows]
    assert found == [
        (0, "x", 0, ["It", "rained", "."]),
        (0, "x", 1, ["We", "left", "."]),
        (1, "y", 0, []),
        (2, "7", 0, ["So", "?"]),
    ]


def test_a_run_without_some_parts_makes_them_again_to_the_same_bytes(
    model: elmo.Model, text: Path, tmp_path: Path
) -> None:
    embed(model, [text], tmp_path / "out")
    before = parts_of(tmp_path / "out")
    for name in list(before)[1::2]:
        (tmp_path / "out" / name).unlink()
    reports: list[Done] = []
    embed(model, [text], tmp_path / "out", resume=True, report=lambda done, whole: reports.append(done))
    assert parts_of(tmp_path / "out") == before
    assert [done.parts for done in reports] == list(range((len(before) + 1) // 2, len(before) + 1))


@pytest.mark.parametrize("what", ["text", "settings", "model"])
def test_another_text_setting_or_model_is_not_mixed_in(
    model: elmo.Model, text: Path, tmp_path: Path, what: str
) -> None:
    embed(model, [text], tmp_path / "out")
    other = model
    if what == "text":
        text.write_text(text.read_text().replace("w36", "w99", 1))
    if what == "model":
        write_model(tmp_path / "other", small_options(), seed=1)
        other = elmo.load(tmp_path / "other")
    settings = {"layers": "top"} if what == "settings" else {}
    before = parts_of(tmp_path / "out")
    name = {"text": "inputs", "settings": "layers", "model": "model"}[what]
    with pytest.raises(ElmoError, match=f"other settings: {name} was"):
        embed(other, [text], tmp_path / "out", settings=settings, resume=True)
    assert parts_of(tmp_path / "out") == before


def test_a_mistake_in_the_corpus_is_said_as_by_one_process(model: elmo.Model, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
    with pytest.raises(ElmoError, match=r"bad.jsonl, line 2 from byte 0: an object with the field 'text'"):
        embed(model, [tmp_path / "bad.jsonl"], tmp_path / "out")
    assert not list((tmp_path / "out").glob("part*"))


def test_so_is_one_that_a_worker_finds(model: elmo.Model, text: Path, tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match="Unknown language 'klingon'"):
        embed(model, [text], tmp_path / "out", reading={"language": "klingon"})


def test_a_cluster_without_gpus_is_said_before_anything_is_written(
    model: elmo.Model, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(ElmoError, match="has no GPU: leave --gpus out"):
        embed_corpus(model, [str(text)], str(tmp_path / "out"), settings=EmbedSettings(), pool=Pool(gpus=True))
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_a_worker_that_is_killed_loses_and_repeats_nothing(model: elmo.Model, text: Path, tmp_path: Path) -> None:
    embed(model, [text], tmp_path / "whole", reading={"part_bytes": 200})
    killed: list[int] = []

    def kill(done: Done, whole: Done) -> None:
        if done.parts == 3 and not killed:
            killed.append(workers()[0])
            os.kill(killed[0], signal.SIGKILL)

    embed(model, [text], tmp_path / "cut", reading={"part_bytes": 200}, report=kill)
    assert killed
    assert parts_of(tmp_path / "cut") == parts_of(tmp_path / "whole")
    assert {path.name for path in (tmp_path / "cut").iterdir()} - set(parts_of(tmp_path / "cut")) == {MANIFEST, "_lock"}


def test_a_driver_that_is_killed_goes_on(text: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "model", small_options())
    out = tmp_path / "out"
    command = ["embed", text, "-m", tmp_path / "model", "--engine", "ray", "--workers", "1", "-o", out]
    command += ["--part-mb", "0.00005"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    driver = subprocess.Popen([sys.executable, "-m", "elmo", *map(str, command)], env=environment)
    while not list(out.glob("part-*")):
        time.sleep(0.01)
        assert driver.poll() is None
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert json.loads((out / MANIFEST).read_text())["complete"] is False
    done = run_elmo(*command, "--resume")
    assert done.returncode == 0, done.stderr
    assert json.loads((out / MANIFEST).read_text())["complete"] is True
    rows = pyarrow.parquet.read_table(out).to_pylist()
    assert [row["index"] for row in rows] == list(range(len(SENTENCES)))
    for row, expected in zip(rows, elmo.load(tmp_path / "model").embed(SENTENCES), strict=True):
        np.testing.assert_allclose(np.reshape(row["vectors"], expected.shape), expected, atol=1e-5)


def workers() -> list[int]:
    """Process ids of the workers that embed: this test's own Ray names them so."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ray::MapWorker(MapBatches(_Worker))" in path.read_bytes() and _is_ours(int(path.parent.name)):
                found.append(int(path.parent.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def _is_ours(process: int) -> bool:
    """Whether a process descends from this one."""
    while process > 1:
        if process == os.getpid():
            return True
        process = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return False
