"""What others build on: the names, the layers, and what an import costs."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import elmo

PACKAGE = Path(elmo.__file__).parent

# From the bottom up: a module imports only from rows below its own (docs/design.md).
ROWS = [
    ["errors"],
    ["config", "files", "lines", "memory", "options", "progress", "text", "transfer", "vocab"],
    ["chars", "word_cache"],
    ["lm", "lm.corpus", "lm.perplexity", "lm.reading"],
    ["lm.parts"],
    ["lm.merge", "lm.work"],
    ["lm.shards"],
    ["lm.prepare"],
    ["lstm"],
    ["model"],
    ["engine.available", "engine.precision", "engine.resident", "engine.triton_lstm"],
    ["engine.compiled", "engine.cuda", "engine.plain"],
    ["engine.cpu"],
    ["engine"],
    ["lm.kernels", "lm.recurrence"],
    ["lm.gpu_recurrence", "lm.softmax"],
    ["lm.encoder", "lm.layer"],
    ["lm.network", "lm.settings"],
    ["lm.batches", "lm.distributed", "lm.late", "lm.optimizers"],
    ["lm.plans"],
    ["lm.graphs", "lm.start"],
    ["formats.hub", "formats.quantise"],
    ["formats.archives", "formats.bundle", "formats.pickles", "formats.stored"],
    ["formats.bilm_tf", "formats.native", "formats.tensor_bundle", "formats.torch_layout"],
    ["formats.allennlp_table"],
    ["formats.onnx_graph"],
    ["formats.onnx"],
    ["formats.allennlp", "formats.manylangs", "formats.nlpl", "formats.tf_checkpoint", "formats.token_cache"],
    ["formats.tf_hub"],
    ["formats"],
    ["lm.checkpoint", "lm.folder"],
    ["lm.loop"],
    ["lm.begin", "lm.train"],
    ["lm.run"],
    ["lm.finetune"],
    ["embed"],
    ["bench", "explore", "explore.neighbours", "lm.scores", "sinks"],
    ["explore.projection", "explore.sample"],
    ["plot", "plot.canvas"],
    ["plot.figures"],
    ["plot.metrics", "plot.occurrences"],
    ["jobs"],
    ["api"],
    ["integrations", "integrations.hf", "integrations.sklearn", "integrations.spacy"],
    ["integrations.sentence_transformers"],
    ["command_io"],
    ["integrations.corpus", "integrations.folder"],
    ["integrations.ray"],
    ["integrations.ray_command"],
    ["compat", "compat.manylangs", "compat.simple_elmo"],
    ["compat.allennlp_bilm"],
    ["compat.allennlp_embedder", "compat.bilm"],
    ["compat.allennlp"],
    ["tasks", "tasks.batch", "tasks.files", "tasks.metrics", "tasks.triton_rows", "tasks.vectors"],
    ["tasks.layers"],
    ["tasks.coref_reader", "tasks.question_metrics", "tasks.readers", "tasks.sense_readers", "tasks.texts"],
    ["tasks.coref_metrics", "tasks.coref_spans", "tasks.pairs", "tasks.role_reader", "tasks.squad", "tasks.words"],
    ["tasks.encoder", "tasks.openings", "tasks.probe", "tasks.senses", "tasks.trees"],
    ["tasks.task"],
    ["tasks.coref_model", "tasks.inference", "tasks.questions", "tasks.sentiment", "tasks.settings", "tasks.tagging"],
    ["tasks.coref", "tasks.roles"],
    ["tasks.all", "tasks.training"],
    ["tasks.run"],
    ["tasks.saved"],
    ["tasks.train_command"],
    ["reproduce", "reproduce.lab"],
    ["reproduce.tables"],
    ["reproduce.figures"],
    ["reproduce.claims", "reproduce.workers"],
    ["reproduce.command"],
    ["explore.command", "lm.command", "tasks.command"],
    ["plot.command"],
    ["serve", "serve.metrics", "serve.refused", "serve.settings"],
    ["serve.messages", "serve.server", "serve.vectors", "serve.work"],
    ["serve.explorer", "serve.guard", "serve.routes"],
    ["serve.app"],
    ["serve.command"],
    ["cli"],
    ["__main__"],
]


def modules() -> dict[str, Path]:
    names = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        names[name] = path
    del names["__init__"]
    return names


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("elmo."):
            module = node.module.removeprefix("elmo.")
            inside = {f"{module}.{name.name}" for name in node.names} & modules().keys()
            found |= inside or {module}
        elif isinstance(node, ast.ImportFrom) and node.module == "elmo":
            found |= {name.name for name in node.names} - {"__version__"}
        elif isinstance(node, ast.Import):
            found |= {name.name.removeprefix("elmo.") for name in node.names if name.name.startswith("elmo.")}
    return found


def test_every_module_has_its_row_and_imports_only_from_below() -> None:
    place = {name: number for number, row in enumerate(ROWS) for name in row}
    assert set(place) == set(modules())
    for name, path in modules().items():
        higher = [other for other in imports(path) if place[other] >= place[name]]
        assert not higher, f"{name} imports {higher}"


def test_all_is_sorted_and_is_what_is_public() -> None:
    assert sorted(elmo.__all__) == elmo.__all__
    assert set(elmo.__all__) == set(elmo._HOMES)
    for name in elmo.__all__:
        assert getattr(elmo, name).__name__ == name
    assert set(elmo.__all__) <= set(dir(elmo))


def test_the_names_of_the_contract_are_there() -> None:
    for name in ("load", "save", "Elmo", "ScalarMix", "BiLM", "Embedder"):
        assert name in elmo.__all__
    for method in ("embed", "embed_iter", "score", "substitutes"):
        assert callable(getattr(elmo.Model, method))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Emlo'"):
        elmo.Emlo  # noqa: B018 - looking it up is the test


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        ("import elmo", ["torch", "numpy", "typer", "h5py"]),
        ("import elmo.cli", ["torch", "numpy", "h5py", "spacy"]),
        ("import elmo; elmo.load", ["typer", "spacy", "pyarrow", "rich"]),
        ("import elmo; elmo.load().embed(['a b'])", ["typer", "spacy", "pyarrow", "rich"]),
        ("import elmo.cli, elmo; elmo.load", ["sklearn", "transformers", "huggingface_hub", "datasets", "matplotlib"]),
    ],
)
def test_an_import_brings_nothing_that_it_does_not_use(code: str, unused: list[str]) -> None:
    check = f"{code}; import sys; print([name for name in {unused!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[]", result


def test_what_is_tested_is_the_installed_package() -> None:
    spec = importlib.util.find_spec("elmo")
    assert spec is not None
    assert spec.origin is not None
    if "site-packages" not in spec.origin and "ELMO_TEST_INSTALLED" not in os.environ:
        pytest.skip("run from the source folder; `make test` tests the built wheel")
    assert "site-packages" in spec.origin
    assert (PACKAGE / "py.typed").exists()
    assert (PACKAGE / "models" / "default" / "config.json").exists()
