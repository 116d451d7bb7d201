"""Where a picture is drawn and how it is written: matplotlib, without its global state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elmo.errors import ElmoError, MissingExtraError
from elmo.files import check_new_file, new_file

_METADATA: dict[str, Any] = {".svg": {"Date": None}, ".png": None}
# Text stays text, and the same numbers give the same bytes.
_SETTINGS: Any = {"svg.fonttype": "none", "svg.hashsalt": "elmo"}


def new_figure(width: float, height: float) -> Any:
    """An empty figure, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("A picture", "plot") from error
    return Figure(figsize=(width, height), layout="constrained")


def check_picture(path: Path, *, overwrite: bool) -> None:
    """Refuse, before any work is done, a picture that could not be written."""
    if path.suffix not in _METADATA:
        raise ElmoError(f"{path} ends in none of {', '.join(_METADATA)}: give a file that does")
    check_new_file(path, overwrite=overwrite)
    if not path.parent.is_dir():
        raise ElmoError(f"there is no folder {path.parent} to put {path.name} into")
    new_figure(1, 1)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG or SVG, by the file's ending; it appears whole or not at all."""
    import matplotlib
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a word of a text may have dollars in it
    with matplotlib.rc_context(_SETTINGS), new_file(path) as beside:
        figure.savefig(beside, format=path.suffix[1:], dpi=150, metadata=_METADATA[path.suffix])
