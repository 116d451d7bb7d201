"""Hugging Face transformers: ELMo as a `PreTrainedModel` (`elmo[hf]`).

`AutoConfig`, `AutoModel` and `AutoFeatureExtractor` know it once this module is imported.

    import elmo.integrations.hf
    model = AutoModel.from_pretrained(folder)
    features = ElmoFeatureExtractor()(["We sat on the bank .", "It purred ."], return_tensors="pt")
    model(**features).last_hidden_state

What `save_pretrained` writes is a native folder, which `elmo.load` reads, and a native folder of float32, bfloat16 or
float16 in one file is read by `from_pretrained`. The language model's head and the warm state are left out.

The network is the readable one, for training; `elmo.load(folder).embed` gives the same numbers faster.

Shapes: B sentences, T tokens, C characters of a word, D width of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from elmo.chars import batch_to_ids
from elmo.config import ModelConfig
from elmo.embed import Sentence, as_tokens
from elmo.errors import ElmoError, MissingExtraError
from elmo.formats.bundle import Bundle
from elmo.model import BiLM, ScalarMix, weight_shapes

try:
    from transformers import (
        AutoConfig,
        AutoFeatureExtractor,
        AutoModel,
        PreTrainedConfig,
        PreTrainedModel,
        initialization,
    )
    from transformers.feature_extraction_utils import BatchFeature, FeatureExtractionMixin
    from transformers.modeling_outputs import BaseModelOutput
except ImportError as error:
    raise MissingExtraError("ElmoModel", "hf") from error


class ElmoConfig(PreTrainedConfig):
    """What a model is made of, by the names of `options.json`, and the marks of a native folder."""

    model_type = "elmo"

    lstm: dict[str, Any] | None = None
    char_cnn: dict[str, Any] | None = None
    format: str = "elmo"
    version: int = 1
    files: int = 1
    parts: list[str] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Refuse a model that this class cannot be."""
        if kwargs.pop("dtype", self.dtype) in ("int8", torch.int8) or self.files != 1:
            raise ElmoError(
                "the weights are int8 or in several files: make one file of floating-point numbers with "
                "'elmo convert IN OUT', or take elmo.load"
            )
        kwargs.pop("head", None)
        self.parts = ["mix"]
        super().__post_init__(**kwargs)
        if self.lstm is not None:  # transformers makes an empty one to compare with
            if self.char_cnn is None or self.char_cnn.get("word_dim"):
                raise ElmoError("ElmoModel reads characters, and this model reads words: take elmo.load")
            self.model_config  # noqa: B018 - making it is the check

    @property
    def model_config(self) -> ModelConfig:
        """The same as the rest of this library has it."""
        return ModelConfig.from_options({"lstm": self.lstm, "char_cnn": self.char_cnn})

    @property
    def hidden_size(self) -> int:
        """Width of a vector."""
        return self.model_config.dim

    @property
    def num_hidden_layers(self) -> int:
        """LSTM layers; there is one layer of words below them."""
        return self.model_config.lstm.n_layers


class ElmoModel(PreTrainedModel):
    """A biLM and a mix of its layers, both trainable."""

    config_class = ElmoConfig
    base_model_prefix = "elmo"
    main_input_name = "input_ids"
    config: ElmoConfig
    # transformers' own classes have plain lists here, and mypy no other type.
    _keys_to_ignore_on_load_unexpected = [r"^head\.", r"^warm\."]  # noqa: RUF012 - see above
    _keys_to_ignore_on_load_missing = [r"^mix\."]  # noqa: RUF012 - see above; without a learned mix: the average

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.bilm = BiLM(config.model_config)
        self.mix = ScalarMix(config.model_config.n_layers)
        self.post_init()

    @classmethod
    def of(cls, model: Bundle) -> Self:
        """A copy of a model that `elmo.load` has loaded, whatever its format."""
        found = cls(ElmoConfig(**model.config.to_options()))
        found.bilm.load_state_dict({name: model.network.read(name) for name in weight_shapes(model.config)})
        if model.mix is not None:
            found.mix.load_state_dict(model.mix.state_dict())
        found.eval()
        return found

    def _init_weights(self, module: nn.Module) -> None:
        """Start values of what a file lacks; the biLM has given itself its own."""
        if isinstance(module, ScalarMix):
            initialization.zeros_(module.weights)
            initialization.ones_(module.gamma)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput | tuple[Any, ...]:
        """Embed sentences, given without boundaries.

        Args:
            input_ids: `(B, T, C)`, as `ElmoFeatureExtractor` makes them.
            attention_mask: `(B, T)`, 1 where there is a token; seen from `input_ids` if not given.
            output_hidden_states: give the layers too, each `(B, T, D)`, that of the words first.
            return_dict: False for a tuple.
            **kwargs: what others of transformers' models take is passed over.

        Returns:
            `last_hidden_state`, `(B, T, D)`: the mix of the layers, the average where none was learned.
        """
        ids = input_ids if attention_mask is None else input_ids * attention_mask[:, :, None]
        mask_BT = self.bilm.mask(ids)
        if bool((mask_BT[:, 1:] & ~mask_BT[:, :-1]).any()):
            raise ElmoError("a sentence has a token behind one that is masked: pad sentences at their ends only")
        layers_LBTD = self.bilm(self.bilm.with_boundaries(ids)).layers[:, :, 1:-1] * mask_BT[:, :, None]
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        output = BaseModelOutput(self.mix(layers_LBTD), tuple(layers_LBTD) if wanted else None)
        return output.to_tuple() if return_dict is False else output


class ElmoFeatureExtractor(FeatureExtractionMixin):
    """Words to character ids: what a tokenizer is to other models."""

    model_input_names = ("input_ids", "attention_mask")

    def __init__(self, max_characters_per_token: int = 50, alphabet: str | None = None, **kwargs: Any) -> None:
        """Encode words as the model with these two fields of `char_cnn` wants them."""
        super().__init__(**kwargs)
        self.max_characters_per_token = max_characters_per_token
        self.alphabet = alphabet

    @classmethod
    def of(cls, config: ElmoConfig) -> Self:
        """The one that a model needs."""
        cnn = config.model_config.char_cnn
        assert cnn is not None
        return cls(cnn.max_characters_per_token, cnn.alphabet)

    def __call__(self, sentences: Sequence[Sentence], *, return_tensors: str | None = None) -> BatchFeature:
        """Encode sentences, each a list of tokens or a string that is split at white space.

        Args:
            sentences: B of them.
            return_tensors: "pt" or "np"; lists if not given.

        Returns:
            `input_ids`, `(B, T, C)`, and `attention_mask`, `(B, T)`, 1 where there is a token.
        """
        if isinstance(sentences, str):
            raise ElmoError(f"a list of sentences is expected, not the string {sentences[:40]!r}: put it in a list")
        tokens = [as_tokens(sentence) for sentence in sentences]
        ids_BTC = batch_to_ids(tokens, self.max_characters_per_token, self.alphabet).astype("int64")
        features = {"input_ids": ids_BTC, "attention_mask": ids_BTC.any(axis=-1).astype("int64")}
        if return_tensors is None:
            return BatchFeature({name: array.tolist() for name, array in features.items()})
        return BatchFeature(features, tensor_type=return_tensors)


AutoConfig.register(ElmoConfig.model_type, ElmoConfig)
AutoModel.register(ElmoConfig, ElmoModel)
AutoFeatureExtractor.register(ElmoConfig, ElmoFeatureExtractor)
