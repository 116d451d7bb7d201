"""Deep contextualized word representations (ELMo): `elmo.load().embed(sentences)`.

The names below are imported where they are first used: `import elmo` and `elmo --help` do not wait for PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elmo.api import Model, load, save
    from elmo.config import CharCNNConfig, LSTMConfig, ModelConfig
    from elmo.embed import Embedder, EmbedSettings
    from elmo.errors import ElmoError
    from elmo.jobs import embed_file
    from elmo.model import BiLM, BiLMOutput, Elmo, ElmoOutput, ScalarMix, State
    from elmo.text import Tokenizer
    from elmo.vocab import Vocabulary

__version__ = "0.1.0"

_HOMES = {
    "BiLM": "elmo.model",
    "BiLMOutput": "elmo.model",
    "CharCNNConfig": "elmo.config",
    "Elmo": "elmo.model",
    "ElmoError": "elmo.errors",
    "ElmoOutput": "elmo.model",
    "EmbedSettings": "elmo.embed",
    "Embedder": "elmo.embed",
    "LSTMConfig": "elmo.config",
    "Model": "elmo.api",
    "ModelConfig": "elmo.config",
    "ScalarMix": "elmo.model",
    "State": "elmo.model",
    "Tokenizer": "elmo.text",
    "Vocabulary": "elmo.vocab",
    "embed_file": "elmo.jobs",
    "load": "elmo.api",
    "save": "elmo.api",
}

__all__ = [
    "BiLM",
    "BiLMOutput",
    "CharCNNConfig",
    "Elmo",
    "ElmoError",
    "ElmoOutput",
    "EmbedSettings",
    "Embedder",
    "LSTMConfig",
    "Model",
    "ModelConfig",
    "ScalarMix",
    "State",
    "Tokenizer",
    "Vocabulary",
    "embed_file",
    "load",
    "save",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'elmo' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
