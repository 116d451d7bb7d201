"""The loop with something else than a biLM: the smallest thing that can be trained, a line through the origin."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor

from elmo.errors import ElmoError
from elmo.lm.checkpoint import fill_tensors, read_tensors, refuse_other_settings
from elmo.lm.distributed import Ranks
from elmo.lm.folder import BEST, CONFIG, LAST, METRICS
from elmo.lm.loop import Report, StepEvent, Trainable, ValidEvent, read_best, run_training, train


@dataclass(frozen=True)
class Stepped(StepEvent):
    error: float

    @property
    def numbers(self) -> tuple[float, ...]:
        return (self.error,)

    def averaged(self, means: tuple[float, ...]) -> Self:
        return replace(self, error=means[0])

    def line(self) -> dict[str, Any]:
        return {"step": self.step, "error": self.error}


@dataclass(frozen=True)
class Validated(ValidEvent):
    error: float

    @property
    def loss(self) -> float:
        return self.error

    def line(self) -> dict[str, Any]:
        return {"step": self.step, "valid_error": self.error}


@dataclass(frozen=True, kw_only=True)
class Settings:
    steps: int = 20
    rate: float = 0.05
    log_every: int = 3
    validate_every: int = 4
    validate_first: bool = False
    checkpoint_every: int = 7
    patience: int = 0
    tensorboard: bool = False


class Line(Trainable[Tensor, Stepped, Validated]):
    """Learns `y = 3 x` by gradient descent with momentum; held out is `y = x`, so it is best on its way."""

    needs_less = "a shorter line needs less"

    def __init__(
        self,
        *,
        late: bool = False,
        bad_from: int | None = None,
        bad: Exception | None = None,
        data: str = "a",
        **changes: Any,
    ) -> None:
        self.loop = self._settings = Settings(**changes)
        self.steps, self.ranks = self._settings.steps, Ranks()
        self.slope, self.momentum = torch.zeros(2), torch.zeros(2)
        self._late, self._bad_from, self._data = late, bad_from, data
        self._bad = bad or ElmoError("the data ends here")

    @property
    def units_a_step(self) -> int:
        return 5

    def reads(self) -> Iterator[Tensor]:
        step = self.step
        while True:
            step += 1
            if step == self._bad_from:
                raise self._bad
            yield torch.randn(5, 2, generator=torch.Generator().manual_seed(step))

    def takes(self, reads: Iterator[Tensor]) -> Iterator[Stepped]:
        untold: list[Stepped] = []
        for x in reads:
            wrong = x @ self.slope - x.sum(dim=1) * 3
            self.momentum.mul_(0.5).add_(x.mT @ wrong / 5)
            self.slope -= self._settings.rate * self.momentum
            self.step += 1
            untold.append(Stepped(self.step, float(wrong.square().mean())))
            while len(untold) > (0 if self.settles_now or not self._late else 1):
                yield untold.pop(0)

    def validate(self) -> Validated:
        return Validated(self.step, float((self.slope - 1).square().mean()))

    def weights(self) -> dict[str, Tensor]:
        return {"slope": self.slope}

    def tensors(self) -> dict[str, Tensor]:
        return self.weights() | {"momentum": self.momentum}

    def settings(self) -> dict[str, Any]:
        return asdict(self._settings)

    def facts(self) -> dict[str, Any]:
        return {"data": self._data}

    def restore(self, about: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> None:
        refuse_other_settings(about["config"], self.settings(), free={"steps"}, path=path)
        if about["data"] != self._data:
            raise ElmoError(f"{path} is of a run on other data")
        fill_tensors(self.tensors(), tensors, path)


Told = Report[Stepped, Validated]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (LAST, BEST, METRICS)}


def at_report(number: int, act: Callable[[], object]) -> Callable[[Told], None]:
    """Do something in the report of this number, from 1 on."""
    seen = []

    def report(told: Told) -> None:
        seen.append(told)
        if len(seen) == number:
            act()

    return report


def interrupt() -> None:
    raise KeyboardInterrupt


class TestTrain:
    def test_takes_every_step_and_validates_in_between_and_at_the_end(self) -> None:
        events = [(type(event).__name__[0], event.step) for event in train(Line(steps=10))]
        steps = [("S", step) for step in range(1, 11)]
        assert events == [*steps[:4], ("V", 4), *steps[4:8], ("V", 8), *steps[8:], ("V", 10)]

    def test_steps_that_are_told_of_late_come_in_the_same_order(self) -> None:
        assert list(train(Line(late=True))) == list(train(Line()))

    def test_goes_on_from_where_it_stands(self) -> None:
        whole, parted = list(train(Line())), Line()
        before = [event for _, event in zip(range(6), train(parted), strict=False)]
        assert before + list(train(parted)) == whole


class TestMetrics:
    def test_a_line_of_steps_has_the_mean_since_the_one_before(self, tmp_path: Path) -> None:
        run_training(Line(steps=8), tmp_path)
        errors = [event.error for event in train(Line(steps=8)) if isinstance(event, Stepped)]
        found = [(line["step"], line["error"]) for line in lines(tmp_path) if "error" in line]
        means = [sum(errors[:3]) / 3, sum(errors[3:6]) / 3, sum(errors[6:]) / 2]
        assert found == [(3, pytest.approx(means[0])), (6, pytest.approx(means[1])), (8, pytest.approx(means[2]))]

    def test_a_line_of_a_validation_is_the_event_s(self, tmp_path: Path) -> None:
        run_training(Line(validate_first=True), tmp_path)
        line = Line()
        expected = [line.validate(), *(event for event in train(line) if isinstance(event, Validated))]
        assert [line for line in lines(tmp_path) if "valid_error" in line] == [event.line() for event in expected]

    def test_a_report_has_the_mean_since_the_last_line_and_what_was_read(self, tmp_path: Path) -> None:
        told: list[Told] = []
        run_training(Line(steps=5, validate_first=True), tmp_path, report=told.append)
        first, *_, fifth, last = told
        assert (first.units, first.mean, first.validated) == (0, None, first.event)
        errors = [report.event.error for report in told if isinstance(report.event, Stepped)]
        means = [report.mean.error for report in told if report.mean is not None and isinstance(report.event, Stepped)]
        assert means[:2] == pytest.approx([errors[0], sum(errors[:2]) / 2])
        assert (fifth.event.step, fifth.units, fifth.steps) == (5, 25, 5)
        assert last.event == last.validated

    def test_the_settings_are_in_the_folder(self, tmp_path: Path) -> None:
        line = Line()
        run_training(line, tmp_path)
        assert json.loads((tmp_path / CONFIG).read_text()) == line.settings()


class TestBest:
    def test_weights_of_the_best_validation_are_kept_and_can_be_read_back(self, tmp_path: Path) -> None:
        line = Line(steps=40)
        progress = run_training(line, tmp_path)
        assert 0 < progress.best_step < 40
        last = line.validate().loss
        about = read_best(tmp_path, line)
        assert about == {"step": progress.best_step, "loss": progress.best_loss}
        assert line.validate().loss == progress.best_loss
        assert last > line.validate().loss
        assert torch.equal(line.slope, read_tensors(tmp_path / BEST)[1]["slope"])

    def test_there_is_none_before_a_validation(self, tmp_path: Path) -> None:
        assert read_best(tmp_path, Line()) is None

    def test_stops_after_so_many_validations_without_a_better_one(self, tmp_path: Path) -> None:
        ended = []
        settings: dict[str, Any] = {"steps": 200, "validate_every": 2, "patience": 3}
        progress = run_training(Line(**settings), tmp_path, finish=lambda: ended.append("first"))
        assert progress.step == progress.best_step + 3 * 2 < 200
        told: list[Told] = []
        again = run_training(Line(**settings), tmp_path, resume=True, report=told.append)
        assert again == progress
        assert (told, ended) == ([], ["first"])


class TestResume:
    @given(
        cut=st.integers(1, 27),
        log=st.integers(1, 6),
        validate=st.integers(1, 21),
        checkpoint=st.integers(1, 21),
        first=st.booleans(),
        late=st.booleans(),
        told=st.booleans(),
    )
    @examples(max_examples=25)
    def test_a_run_that_was_cut_anywhere_ends_with_the_same_bytes(
        self, cut: int, log: int, validate: int, checkpoint: int, first: bool, late: bool, told: bool
    ) -> None:
        """`told`: by a signal, which lets it save its step first; otherwise it goes on from its last checkpoint."""

        def line() -> Line:
            often: dict[str, Any] = {"log_every": log, "validate_every": validate, "checkpoint_every": checkpoint}
            return Line(late=late, validate_first=first, **often)

        with TemporaryDirectory() as name:
            whole, parted = Path(name) / "whole", Path(name) / "parted"
            progress = run_training(line(), whole)
            act = (lambda: signal.raise_signal(signal.SIGTERM)) if told else interrupt
            try:
                run_training(line(), parted, report=at_report(cut, act))
            except KeyboardInterrupt:
                assert run_training(line(), parted, resume=True) == progress
            assert contents(parted) == contents(whole)

    def test_a_run_that_is_told_to_stop_is_not_finished(self, tmp_path: Path) -> None:
        ended: list[int] = []
        stop = at_report(6, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            run_training(Line(late=True), tmp_path, report=stop, finish=lambda: ended.append(1))
        about, _ = read_tensors(tmp_path / LAST)
        assert about["progress"]["step"] == 6  # the step that was under way
        assert not ended

    def test_a_run_may_become_longer(self, tmp_path: Path) -> None:
        run_training(Line(steps=12), tmp_path / "short")
        longer = Line(steps=20)
        run_training(longer, tmp_path / "short", resume=True)
        run_training(whole := Line(steps=20), tmp_path / "long")
        assert torch.equal(longer.slope, whole.slope)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [({"rate": 0.1}, r"rate = 0\.05, the config says 0\.1"), ({"data": "b"}, "other data")],
    )
    def test_a_checkpoint_that_the_training_refuses_is_left_alone(
        self, tmp_path: Path, changes: dict[str, Any], message: str
    ) -> None:
        run_training(Line(), tmp_path)
        before = contents(tmp_path)
        with pytest.raises(ElmoError, match=message):
            run_training(Line(**changes), tmp_path, resume=True)
        assert contents(tmp_path) == before

    def test_tensors_of_other_shapes_are_refused(self, tmp_path: Path) -> None:
        run_training(Line(), tmp_path)
        other = Line()
        other.slope = torch.zeros(3)
        with pytest.raises(ElmoError, match=r"slope has shape \(2,\), the options say \(3,\)"):
            run_training(other, tmp_path, resume=True)

    def test_metrics_that_lost_lines_are_refused(self, tmp_path: Path) -> None:
        run_training(Line(), tmp_path)
        (tmp_path / METRICS).write_text("")
        with pytest.raises(ElmoError, match="shorter than its checkpoint says"):
            run_training(Line(steps=30), tmp_path, resume=True)

    def test_an_error_of_the_data_names_the_last_good_checkpoint(self, tmp_path: Path) -> None:
        with pytest.raises(ElmoError, match=r"the data ends here; the last good checkpoint is of step 8: "):
            run_training(Line(bad_from=11), tmp_path)

    def test_too_little_memory_is_an_error_that_says_what_to_do(self, tmp_path: Path) -> None:
        full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total of")
        message = r"^CUDA out of memory: a shorter line needs less; the last good checkpoint is of step 8: "
        with pytest.raises(ElmoError, match=message):
            run_training(Line(bad_from=11, bad=full), tmp_path)
