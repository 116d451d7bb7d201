"""Code as users of AllenNLP 0.9's `ElmoEmbedder` and its command wrote it: only the import differs.

    python embedder_code.py MODEL TEXT FOLDER [ALLENNLP_0.9]

Of AllenNLP 0.9 only `commands/elmo.py`, which has the embedder and writes the files, is run, as it is, on the modules
of 2.10.1: the whole would need an environment of its time.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


def embedder_of(package: str | None) -> Any:
    """The class, from the file of the old package or from this library."""
    if package is None:
        from elmo.compat.allennlp import ElmoEmbedder

        return ElmoEmbedder
    import allennlp.common.util

    allennlp.common.util.prepare_global_logging = None  # has moved since; the command alone calls it
    spec = importlib.util.spec_from_file_location("elmo09", Path(package) / "allennlp" / "commands" / "elmo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ElmoEmbedder


def main() -> None:
    """Write a file for each set of options."""
    model, text, folder, *package = sys.argv[1:]
    embedder_class = embedder_of(package[0] if package else None)
    options: dict[str, dict[str, Any]] = {
        "all": {},
        "top": {"output_format": "top", "batch_size": 16, "forget_sentences": True},
        "average": {"output_format": "average", "use_sentence_keys": True},
    }
    for name, given in options.items():
        embedder = embedder_class(f"{model}/options.json", f"{model}/weights.hdf5")
        embedder.embed_file(open(text, encoding="utf-8"), f"{folder}/{name}.hdf5", **given)  # noqa: SIM115 - it closes


if __name__ == "__main__":
    main()
