"""What a training run is made of: frozen dataclasses, read from TOML, checked on creation.

`[model]` has the names of bilm-tf's `options.json`. An error names the key as the user typed it, and an unknown key the
nearest known one.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from elmo.config import ModelConfig
from elmo.errors import ElmoError


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """How text becomes batches."""

    rows: int = 128
    """Rows of the batch, of all devices together: the same run on more devices has fewer rows on each."""
    unroll_steps: int = 20
    """Time steps of a window; the state is carried over windows, the gradient is not."""
    forget: float = 0.0
    """Share of the rows that start a window from the zero state instead of theirs, drawn anew for every window. 0 is as
    published; a model may then come to need a state that no text starts from."""

    def __post_init__(self) -> None:
        """Refuse values that no run can have."""
        _at_least("data.rows", self.rows, 1)
        _at_least("data.unroll_steps", self.unroll_steps, 1)
        if not 0 <= self.forget <= 1:
            raise ElmoError(f"data.forget is {self.forget!r}: give a number from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class SoftmaxSettings:
    """How the next word is predicted in training; validation always uses all words."""

    kind: Literal["sampled", "full", "adaptive"] = "sampled"
    """Sampled for large vocabularies, full for small ones; adaptive is another model, with clusters of rare words."""
    samples: int = 8192
    """Negatives of the sampled softmax, one set a direction for all positions."""
    start: Literal["zero", "unigram"] = "zero"
    """What the biases start from: zero, as published, or the log of the words' frequencies, to learn sooner."""
    cutoffs: tuple[int, ...] = ()
    """Words after which the clusters of the adaptive softmax end, ascending."""

    def __post_init__(self) -> None:
        """Refuse values that no run can have."""
        _at_least("softmax.samples", self.samples, 1)
        if bool(self.cutoffs) != (self.kind == "adaptive"):
            raise ElmoError(
                f"softmax.kind is {self.kind!r} and softmax.cutoffs {list(self.cutoffs)}: cutoffs belong to "
                "'adaptive', which needs them"
            )
        if self.start == "unigram" and self.kind == "adaptive":
            raise ElmoError("softmax.start is 'unigram': an adaptive softmax has no bias a word; give 'zero'")


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """How weights follow their gradients."""

    kind: Literal["adagrad", "adamw"] = "adagrad"
    """Adagrad is the published one. AdamW learns several times faster; give it data.forget, too, without which it soon
    finds weights that only work from the state of training (docs/log.md)."""
    rate: float = 0.2
    """Learning rate (after the warm-up, before the decay)."""
    clip: float = 10.0
    """Gradients are scaled down to this norm, all together."""
    accumulator: float = 1.0
    """What Adagrad's sums of squares start from."""
    beta1: float = 0.9
    """AdamW: memory of the mean."""
    beta2: float = 0.999
    """AdamW: memory of the square."""
    epsilon: float = 1e-8
    """AdamW: added to the root."""
    weight_decay: float = 0.0
    """AdamW: share of a weight that goes, at a rate of 1; of the softmax, rows that a step touches."""
    warmup: int = 0
    """Steps in which the rate grows from 0."""
    decay: Literal["none", "linear", "cosine"] = "none"
    """How the rate falls from the warm-up to the last step."""
    floor: float = 0.0
    """Where it falls to, as a share of the rate."""

    def __post_init__(self) -> None:
        """Refuse values that no run can have."""
        for name in ("rate", "clip", "accumulator", "epsilon"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ElmoError(f"optimizer.{name} is {getattr(self, name)!r}: give a number above 0")
        for name in ("beta1", "beta2", "floor", "weight_decay"):
            if not 0 <= getattr(self, name) <= 1 or (name.startswith("beta") and getattr(self, name) == 1):
                raise ElmoError(f"optimizer.{name} is {getattr(self, name)!r}: give a number from 0 to 1")
        _at_least("optimizer.warmup", self.warmup, 0)


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How long, how often, how exact."""

    epochs: int = 10
    """Passes over the training split."""
    steps: int | None = None
    """Steps instead of epochs."""
    head_steps: int | None = None
    """Steps at the beginning in which only the head learns: for a new head on a trained biLM. 0 for none, as if it
    were not given: fine-tuning gives a new head its first epoch alone, or a third of a run of less than three."""
    dropout: float = 0.1
    """On the input of every LSTM layer and on the top output."""
    accumulate: int = 1
    """Parts that a device's rows are computed in, to need less memory; the result is the same."""
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """bf16: products in bfloat16, weights and sums in float32; auto: where the device has it."""
    log_every: int = 50
    """Steps between lines of `metrics.jsonl`, which hold the mean over them."""
    validate_every: int = 1000
    """Steps between validations."""
    validate_first: bool = False
    """Validate before the first step, too: what a run starts from may then be its best."""
    validation_windows: int | None = None
    """Windows of the held-out split that a validation reads; all if not given."""
    checkpoint_every: int = 1000
    """Steps between checkpoints; there is one after every validation, too."""
    patience: int = 0
    """Stop after so many validations without a better one; 0 never stops."""
    tensorboard: bool = False
    """Write TensorBoard's files, too."""

    def __post_init__(self) -> None:
        """Refuse values that no run can have."""
        for name in ("epochs", "accumulate", "log_every", "validate_every", "checkpoint_every"):
            _at_least(f"train.{name}", getattr(self, name), 1)
        for name in ("steps", "validation_windows"):
            if getattr(self, name) is not None:
                _at_least(f"train.{name}", getattr(self, name), 1)
        if self.head_steps is not None:
            _at_least("train.head_steps", self.head_steps, 0)
        _at_least("train.patience", self.patience, 0)
        if not 0 <= self.dropout < 1:
            raise ElmoError(f"train.dropout is {self.dropout!r}: give a number from 0 to below 1")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run."""

    model: ModelConfig
    """The biLM, in the words of bilm-tf's options."""
    corpus: str = "corpus"
    """Folder that `elmo prepare` made."""
    seed: int = 0
    """Start values, order of the text, samples and dropout follow from it."""
    data: DataSettings = field(default_factory=DataSettings)
    """How text becomes batches."""
    softmax: SoftmaxSettings = field(default_factory=SoftmaxSettings)
    """How the next word is predicted."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    """How weights follow their gradients."""
    train: LoopSettings = field(default_factory=LoopSettings)
    """How long, how often, how exact."""

    def __post_init__(self) -> None:
        """Refuse values that no run can have."""
        _at_least("seed", self.seed, 0)
        cnn = self.model.char_cnn
        if cnn is not None and (cnn.alphabet is not None or cnn.word_dim):
            raise ElmoError(
                "model.char_cnn has an alphabet or a table of words (ELMoForManyLangs): such a model can be used, but "
                "not trained here; leave alphabet and word_dim out"
            )

    @classmethod
    def read(cls, path: Path, sets: Sequence[str] = ()) -> TrainConfig:
        """Read a TOML file; `sets` are settings such as `train.steps=100` that replace those of the file."""
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ElmoError(f"cannot read {path}: {error.strerror}") from error
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ElmoError(f"{path} is not TOML: {error}") from error
        for one in sets:
            set_value(raw, one)
        try:
            return cls.from_dict(raw)
        except ElmoError as error:
            raise ElmoError(f"{path}: {error}") from error

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> TrainConfig:
        """Check a mapping of settings, as TOML or `to_dict` gives it."""
        config: TrainConfig = build_settings(cls, raw, "")
        return config

    def changed(self, sets: Sequence[str]) -> TrainConfig:
        """These settings with some replaced, given such as `train.steps=100`."""
        raw = self.to_dict()
        for one in sets:
            set_value(raw, one)
        return TrainConfig.from_dict(raw)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values; `from_dict` reads them."""
        parts = ("data", "softmax", "optimizer", "train")
        return {"corpus": self.corpus, "seed": self.seed, "model": self.model.to_options()} | {
            name: {key: value for key, value in asdict(getattr(self, name)).items() if value is not None}
            for name in parts
        }


def set_value(raw: dict[str, Any], text: str) -> None:
    """Put a setting such as `train.steps=100` into plain values."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ElmoError(f"--set {text!r}: give a key and its value, such as train.steps=100")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value  # a word need not be quoted twice on a command line
    *sections, last = key.strip().split(".")
    for section in sections:
        raw = raw.setdefault(section, {})
        if not isinstance(raw, dict):
            raise ElmoError(f"--set {text!r}: {section} is no section")
    raw[last] = parsed


def build_settings(cls: type[Any], raw: Mapping[str, Any], where: str) -> Any:
    """A settings dataclass of plain values; an error names the key, `where` standing before it."""
    hints = get_type_hints(cls)
    refuse_unknown(raw, [f.name for f in fields(cls)], where)
    values = {key: _checked(f"{where}{key}", value, hints[key]) for key, value in raw.items()}
    if cls is TrainConfig and "model" not in values:
        raise ElmoError("the section [model] is missing: it holds lstm and char_cnn, as bilm-tf's options.json does")
    return cls(**values)


def _checked(name: str, value: Any, hint: Any) -> Any:
    if hint is ModelConfig:
        return _model(name, value)
    if isinstance(hint, type) and is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ElmoError(f"{name} is {value!r:.50}: a section is expected")
        return build_settings(hint, value, f"{name}.")
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ElmoError(f"{name} is {value!r:.50}: give one of {', '.join(map(repr, get_args(hint)))}")
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)) or any(type(item) is not int for item in value):
            raise ElmoError(f"{name} is {value!r:.50}: a list of whole numbers is expected")
        return tuple(value)
    allowed = [one for one in get_args(hint) if one is not NoneType] if isinstance(hint, UnionType) else [hint]
    if float in allowed and type(value) is int:
        value = float(value)
    if type(value) not in allowed:
        words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        raise ElmoError(f"{name} is {value!r:.50}: {words[allowed[0]]} is expected")
    return value


def _model(name: str, value: Any) -> ModelConfig:
    if not isinstance(value, Mapping):
        raise ElmoError(f"{name} is {value!r:.50}: a section is expected")
    config = ModelConfig.from_options(value)
    _refuse_unknown_options(value, config.to_options(), f"{name}.")
    return config


def _refuse_unknown_options(given: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    refuse_unknown(given, known, where)
    for key, value in given.items():
        if isinstance(value, Mapping):
            _refuse_unknown_options(value, known[key], f"{where}{key}.")


def refuse_unknown(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse a key that is not known, naming the nearest that is."""
    known = list(known)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {where}{near[0]}?" if near else f"known are {', '.join(known)}"
            raise ElmoError(f"unknown setting {where}{key}: {hint}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ElmoError(f"{name} is {value}: give a whole number from {least} on")
