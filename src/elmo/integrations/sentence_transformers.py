"""sentence-transformers: ELMo as the first module of a `SentenceTransformer` (`elmo[sentence-transformers]`).

elmo_module = ElmoEmbeddings(elmo.load())
SentenceTransformer(modules=[elmo_module, Pooling(elmo_module.get_embedding_dimension())])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from torch import Tensor

from elmo.errors import MissingExtraError
from elmo.formats.bundle import Bundle
from elmo.text import Tokenizer

try:
    from sentence_transformers.base.modules.input_module import InputModule
except ImportError as error:
    raise MissingExtraError("ElmoEmbeddings", "sentence-transformers") from error

from elmo.integrations.hf import ElmoFeatureExtractor, ElmoModel  # what it needs comes with sentence-transformers


class ElmoEmbeddings(InputModule):
    """Texts to token vectors, the mix of the layers; a pooling comes behind it. All of it can be trained."""

    config_file_name = "elmo_embeddings.json"
    config_keys = ["language", "max_seq_length"]  # noqa: RUF012 - so it is in the base class

    def __init__(
        self, model: Bundle | ElmoModel, *, language: str | None = None, max_seq_length: int | None = None
    ) -> None:
        """Put a model to work.

        Args:
            model: what `elmo.load` returns (which is copied), or an `ElmoModel`.
            language: None where texts are split at white space; a code such as "en" for raw text (`elmo[text]`). A
                text is read as one sentence either way.
            max_seq_length: tokens of a text that are read.
        """
        super().__init__()
        self.elmo = model if isinstance(model, ElmoModel) else ElmoModel.of(model)
        self.language = language
        self.max_seq_length = max_seq_length
        self._extractor = ElmoFeatureExtractor.of(self.elmo.config)
        self._tokenizer = None if language is None else Tokenizer(language)

    def get_embedding_dimension(self) -> int:
        """Width of a token's vector."""
        return self.elmo.config.hidden_size

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Tensor]:
        """Texts to `input_ids`, `(B, T, C)`, and `attention_mask`, `(B, T)`."""
        texts = self._prepend_prompt(list(inputs), prompt) if prompt else inputs
        tokens = [self._split(text)[: self.max_seq_length] for text in texts]
        return dict(self._extractor(tokens, return_tensors="pt"))

    def forward(self, features: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        """Add `token_embeddings`, `(B, T, D)`."""
        output = self.elmo(features["input_ids"], features["attention_mask"])
        return features | {"token_embeddings": output.last_hidden_state}

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write the model, which `elmo.load` can read, and the settings."""
        self.elmo.save_pretrained(output_path)
        self.save_config(output_path)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Read what `save` wrote; the arguments are those of sentence-transformers."""
        place: Any = {
            "subfolder": subfolder,
            "token": token,
            "cache_folder": cache_folder,
            "revision": revision,
            "local_files_only": local_files_only,
        }
        settings = cls.load_config(model_name_or_path, **place)
        folder = cls.load_dir_path(model_name_or_path, **place)
        return cls(ElmoModel.from_pretrained(folder), **settings)

    def _split(self, text: str) -> list[str]:
        if self._tokenizer is None:
            return text.split()
        return [token for sentence in self._tokenizer(text) for token in sentence.tokens]
