"""The paper's evaluation at toy size: all of it runs, runs are kept, and tables say how they were made."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from conftest import SHARED, run_elmo, small_options, write_model
from elmo.errors import ElmoError
from elmo.reproduce import claims, figures, tables
from elmo.reproduce.figures import with_share
from elmo.reproduce.lab import SIX, Lab, NotDoneError, Run, Settings, Study
from elmo.reproduce.tables import Row, markdown, spread, with_elmo, without
from elmo.reproduce.workers import run_all, runs_of
from elmo.tasks.all import task_named
from elmo.tasks.run import RESULT, Result
from elmo.tasks.settings import TaskConfig

DATA = SHARED / "data" / "tasks"
RESULTS = Path(__file__).parents[1] / "docs" / "results"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the task data of ../shared is not here")


def study(folder: Path, **changes: object) -> Study:
    values: dict[str, object] = {"data": DATA, "runs": folder / "runs", "quick": True, "seeds": 1}
    return Study(**values | {"device": torch.device("cpu")} | changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(study(tmp_path_factory.mktemp("study")))


@needs_data
class TestQuick:
    def test_every_task_is_trained_without_and_with_elmo(self, lab: Lab) -> None:
        text = tables.table1(lab)
        assert all(f"| {name} | " in text for name in SIX)
        assert "Median relative error reduction" in text

    def test_a_run_that_was_done_is_not_done_again(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        first = lab.run("ner", without("ner"))
        monkeypatch.setattr("elmo.reproduce.lab.train_task", lambda *_, **__: pytest.fail("it was trained again"))
        again = Lab(lab.study).run("ner", without("ner"))
        assert again.test == first.test
        with pytest.raises(pytest.fail.Exception):
            lab.run("ner", without("ner"), seed=1)

    def test_layers_and_places_are_compared_on_three_tasks(self, lab: Lab) -> None:
        assert tables.table2(lab).count("|\n") == 6
        assert "Peters et al. 2017" in tables.table2(lab)
        assert "| output only | " in tables.table3(lab)

    def test_figures_are_drawn_with_their_numbers(self, lab: Lab, tmp_path: Path) -> None:
        for draw, name in ((figures.figure1, "figure1.svg"), (figures.figure2, "figure2.svg")):
            text = draw(lab, tmp_path)
            assert (tmp_path / name).read_text().startswith("<?xml")
            assert f"({name})" in text
        assert "| inference | with ELMo | " in figures.figure1(lab, tmp_path)

    def test_layers_are_told_apart_by_senses_tags_and_neighbours(self, lab: Lab) -> None:
        assert "| layer 2 | " in tables.table5(lab)
        assert "| word alone | " in tables.table6(lab)
        assert "| biLM, top layer | " in tables.table4(lab)

    def test_each_claim_is_held_to_numbers(self, lab: Lab) -> None:
        text = claims.claims(lab)
        assert text.count("| held |") + text.count("| did not hold |") == 9

    def test_processes_do_the_runs_that_one_would_do(self, lab: Lab, tmp_path: Path) -> None:
        here, expected = study(tmp_path, tasks=("ner",)), tables.rows(Lab(study(lab.study.runs.parent, tasks=("ner",))))
        run_all(here, runs_of(["table1"], here), 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("elmo.reproduce.lab.train_task", lambda *_, **__: pytest.fail("it was not done"))
            assert tables.rows(Lab(here)) == expected

    def test_runs_that_were_not_done_are_left_out_where_none_is_to_be(self, lab: Lab, tmp_path: Path) -> None:
        lab.run("ner", without("ner"))
        lab.run("ner", with_elmo("ner"))
        lab.run("srl", without("srl"))
        done = Lab(replace(lab.study, tasks=("ner", "srl"), seeds=3, train=False))
        (row,) = [row for row in tables.rows(done) if row.task == "ner"]
        assert len(row.baseline) == len(row.elmo) == 1
        assert row.epochs == "2 and 2 of 2"
        fresh = Lab(study(tmp_path, train=False, tasks=("srl", "ner")))
        with pytest.raises(NotDoneError, match="no task was trained"):
            tables.rows(fresh)
        assert "| baseline | – |" in tables.table2(fresh)
        assert "| ner | baseline | – | – | – | – | – |" in figures.figure1(fresh, tmp_path)

    def test_other_static_vectors_make_other_runs(self, lab: Lab, tmp_path: Path) -> None:
        (tmp_path / "glove.txt").write_text("the 1 0 0\nof 0 1 0\n")
        ours = lab.run("sentiment", without("sentiment"))
        theirs = Lab(replace(lab.study, vectors=str(tmp_path / "glove.txt"))).run("sentiment", without("sentiment"))
        assert (ours.config["encoder"]["vectors"], theirs.config["encoder"]["vectors"][-9:]) == ("default", "glove.txt")
        (tmp_path / "elsewhere.txt").write_text((tmp_path / "glove.txt").read_text())
        moved = Lab(replace(lab.study, vectors=str(tmp_path / "elsewhere.txt"), train=False))
        assert moved.run("sentiment", without("sentiment")) == theirs
        result = run_elmo("reproduce", "table1", "--data", DATA, "--vectors", tmp_path / "nowhere.txt")
        assert result.returncode == 2
        assert b"there are no word vectors" in result.stderr

    def test_what_fails_in_a_process_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(ElmoError, match=r"encoder\.elmo is 'everywhere'"):
            run_all(study(tmp_path), [Run("ner", {"encoder": {"elmo": "everywhere"}})] * 2, 2)

    def test_more_runs_than_a_pipe_holds_are_done_and_their_errors_too(self, tmp_path: Path) -> None:
        nowhere = Run("ner", {"encoder": {"elmo": "everywhere" * 1000}})
        with pytest.raises(ElmoError, match=r"encoder\.elmo is 'everywhere"):
            run_all(study(tmp_path), [replace(nowhere, seed=seed) for seed in range(2000)], 1)

    def test_the_command_says_how_a_table_was_made(self, tmp_path: Path) -> None:
        out, runs = tmp_path / "out", tmp_path / "runs"
        options = [
            "--quick",
            "--seeds",
            1,
            "--data",
            DATA,
            "--runs",
            runs,
            "-o",
            out,
            "--tasks",
            "ner",
            "--device",
            "cpu",
        ]
        result = run_elmo("reproduce", "table1", *options)
        assert result.returncode == 0, result.stderr
        text = (out / "table1.md").read_text()
        for part in (
            "`elmo reproduce table1 --quick --tasks ner --seeds 1`",
            "commit ",
            "PyTorch",
            "seeds 0",
            "toy size",
        ):
            assert part in text


def test_a_baseline_is_found_again_with_another_bilm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(task: object, config: TaskConfig, data: object, folder: Path, **_: object) -> SimpleNamespace:
        result = Result(config.to_dict(), 1, 1.0, {"f1": 0.5}, {"f1": 0.5}, [0.5])
        folder.mkdir(parents=True)
        (folder / RESULT).write_text(json.dumps(asdict(result)))
        return SimpleNamespace(result=result)

    monkeypatch.setattr("elmo.reproduce.lab.train_task", trained)
    for name in ("data", "_layers"):
        monkeypatch.setattr(Lab, name, lambda *_: None)
    labs = []
    for seed, name in enumerate(("one", "other")):
        write_model(tmp_path / name, small_options(), seed=seed)
        labs.append(Lab(study(tmp_path, model=str(tmp_path / name))))
    one, other = labs
    assert one.model_digest != other.model_digest
    baseline = one.run("ner", without("ner"))
    for settings in (with_elmo("ner"), with_elmo("ner", layers="top")):
        one.run("ner", settings)
    never = Lab(replace(other.study, train=False))
    assert never.run("ner", without("ner")) == baseline
    with pytest.raises(NotDoneError):
        never.run("ner", without("ner"), seed=1)
    for settings in (with_elmo("ner"), with_elmo("ner", layers="top")):
        with pytest.raises(NotDoneError):
            never.run("ner", settings)


def test_mistakes_are_said(tmp_path: Path) -> None:
    for arguments, message in (
        (["table9"], b"there is no 'table9': give some of table1"),
        (["table1", "--data", tmp_path / "nowhere"], b"there is no folder"),
        (["table1", "--data", tmp_path, "--tasks", "ner,chess"], b"there is no task 'chess'"),
    ):
        result = run_elmo("reproduce", *arguments)
        assert result.returncode == 2
        assert message in result.stderr
    with pytest.raises(ElmoError, match="seeds is 0"):
        study(tmp_path, seeds=0)


def test_an_error_that_is_halved_is_cut_by_half() -> None:
    row = Row("ner", "f1", baseline=[0.8, 0.8], elmo=[0.9, 0.9], epochs="2 and 2 of 2")
    assert row.error_cut == pytest.approx(0.5)
    assert spread([0.8, 0.9]) == "85.00 ± 7.07 (2)"
    assert spread([]) == "–"
    assert spread([0.8]) == "80.00"
    assert markdown(["a"], [["b"]]) == "| a |\n| --- |\n| b |\n"
    assert with_elmo("srl", layers="top") == {"encoder": {"elmo": "input", "layers": "top"}}


class Asked(Lab):
    """Remembers what it is asked for."""

    def __init__(self, study: Study) -> None:
        super().__init__(study)
        self.runs: list[Run] = []

    def run(self, name: str, settings: Settings, seed: int = 0) -> Result:
        if (run := Run(name, settings, seed)) not in self.runs:
            self.runs.append(run)
        scores = {task_named(name).score: 0.5}
        config = {"task": name, "seed": seed, "train": {"epochs": 2}}
        return Result(config, 1, 1.0, scores, scores, [0.5], {"input": [0.2, 0.3, 0.5]})


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "figure1", "figure2"])
def test_processes_know_what_a_table_is_going_to_ask_for(name: str, tmp_path: Path) -> None:
    lab = Asked(study(tmp_path, seeds=3))
    if name.startswith("figure"):
        getattr(figures, name)(lab, tmp_path)
    else:
        getattr(tables, name)(lab)
    assert sorted(map(repr, runs_of([name], lab.study))) == sorted(map(repr, lab.runs))


def test_what_tables_ask_for_in_other_words_is_one_run(tmp_path: Path) -> None:
    runs = runs_of(["table1", "table2", "table3"], study(tmp_path, tasks=("squad",), seeds=2))
    assert len(runs) == 8  # with none and both at two seeds, the last layer, a large penalty, input, output
    assert len({repr(TaskConfig.of(task_named(run.task), {"seed": run.seed, **run.settings})) for run in runs}) == 8


def test_a_small_development_set_has_more_seeds_in_the_tables_of_variants(tmp_path: Path) -> None:
    lab = Asked(study(tmp_path, seeds=3))
    tables.table3(lab)
    assert {name: len({run.seed for run in lab.runs if run.task == name}) for name in tables.CHOSEN} == {
        "squad": 1,
        "inference": 3,
        "srl": 1,
    }


def test_claims_compare_the_seeds_that_both_sides_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {"top": {0: 0.6, 1: 0.9}, "all": {1: 0.8, 2: 0.1}}
    monkeypatch.setattr(claims, "dev_scores", lambda _lab, _name, settings: scores[settings["encoder"]["layers"]])
    lab = Lab(study(tmp_path, tasks=("inference",)))
    gains = claims._gains(lab, lambda name: with_elmo(name, layers="all"), lambda name: with_elmo(name, layers="top"))
    assert gains == {"inference": pytest.approx(-10)}
    scores["all"] = {2: 0.1}
    with pytest.raises(NotDoneError, match="both ways"):
        claims._gains(lab, lambda name: with_elmo(name, layers="all"), lambda name: with_elmo(name, layers="top"))


@pytest.mark.parametrize("name", figures.TASKS)
def test_a_share_of_the_examples_has_at_least_half_the_steps_of_all_and_takes_them_all(name: str) -> None:
    task = task_named(name)
    whole = TaskConfig.of(task, with_share(with_elmo(name), 1.0)).train
    for share in figures.SHARES[:-1]:
        train = TaskConfig.of(task, with_share(with_elmo(name), share)).train
        assert train.share * train.passes >= 0.5 * whole.passes
        assert (train.epochs, train.patience) == (whole.epochs, 0)


def test_a_folder_of_runs_is_of_one_version_of_the_data(tmp_path: Path) -> None:
    archive = tmp_path / "data" / "ner_uner_ewt.tar.xz"
    archive.parent.mkdir()
    here = study(tmp_path, data=archive.parent, tasks=("ner",), train=False)
    for content, fits in ((b"one", True), (b"one", True), (b"other", False)):
        archive.write_bytes(content)
        expected = NotDoneError if fits else ElmoError
        with pytest.raises(expected, match="was not done" if fits else r"done with another ner_uner_ewt\.tar\.xz"):
            Lab(here).run("ner", without("ner"))
    archive.unlink()  # tables can be made again without it
    with pytest.raises(NotDoneError):
        Lab(here).run("ner", without("ner"))


def test_what_cannot_be_read_keeps_no_other_table_from_being_made(tmp_path: Path) -> None:
    options = ["--data", tmp_path, "--runs", RESULTS / "runs", "-o", tmp_path / "out", "--no-train", "--device", "cpu"]
    result = run_elmo("reproduce", "table6", "figure2", *options)
    assert result.returncode == 2
    assert b"table6 was not made: cannot read" in result.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["figure2.md", "figure2.svg"]
    nothing = run_elmo("reproduce", "figure2", *options, "--runs", tmp_path / "none")
    assert b"figure2 was not made: no task was trained with ELMo" in nothing.stderr


def test_what_compares_no_task_that_was_asked_for_is_not_made(tmp_path: Path) -> None:
    options = ["--data", tmp_path, "--runs", tmp_path / "runs", "-o", tmp_path / "out", "--no-train", "--device", "cpu"]
    result = run_elmo("reproduce", "table2", "figure1", "--tasks", "coref", *options)
    assert result.returncode == 2
    assert b"table2 was not made: it compares squad, inference, srl" in result.stderr
    assert b"figure1 was not made: it is of inference and ner" in result.stderr
    assert not list((tmp_path / "out").iterdir())


@needs_data
def test_neighbours_of_a_word_that_the_vectors_do_not_have_are_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("the 1 0 0\nof 0 1 0\n")
    with pytest.raises(NotDoneError, match="have no 'play'"):
        tables.table4(Lab(study(tmp_path, vectors=str(tmp_path / "few.txt"))))
