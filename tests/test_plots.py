from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageColor

from tensorstore_ds.annex.training import plots, sheet as drawing
from tensorstore_ds.annex.training.history import EpochRecord
from tensorstore_ds.annex.training.plots import draw_confusion, draw_curves
from tensorstore_ds.annex.training.sheet import plots_available
from tensorstore_ds.errors import OptionError, OutputError


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are drawn, to be looked into beside their pictures."""
    seen = []

    @contextmanager
    def sheet(*arguments: Any) -> Iterator[Figure]:
        with drawing.sheet(*arguments) as figure:
            yield figure
        seen.append(figure)

    monkeypatch.setattr(plots, "sheet", sheet)
    return seen


def epoch(number: int, *, evaluated: float | None = None, **train: float) -> EpochRecord:
    found = None if evaluated is None else {"loss": 1 - evaluated, "accuracy": evaluated}
    return EpochRecord(number, 1.0, 1e-3, train or {"loss": 1 / number, "accuracy": 1 - 1 / number}, found, 100.0, 0.0)


def run(epochs: int) -> list[EpochRecord]:
    return [epoch(number, evaluated=0.9 - 0.5 / number) for number in range(1, epochs + 1)]


def pixels(path: Path) -> NDArray[np.uint8]:
    """(H, W, 3): the picture is whole, and of no other kind than PNG."""
    with Image.open(path, formats=["PNG"]) as image:
        image.load()
        return np.asarray(image.convert("RGB"))


def count(picture: NDArray[np.uint8], color: str) -> int:
    """Pixels of a color."""
    return int((picture == ImageColor.getrgb(color)).all(2).sum())


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


# --- curves


def test_curves_show_loss_and_metric_of_training_and_evaluation(tmp_path: Path, figures: list[Figure]) -> None:
    path = tmp_path / "curves.png"
    assert draw_curves(run(5), path, metric="accuracy") is True
    picture = pixels(path)
    assert picture.shape == (576, 1440, 3)
    for half in (picture[:, :720], picture[:, 720:]):
        for color in (drawing.TRAIN, drawing.EVAL):
            assert count(half, color) > 500
    assert tuple(picture[0, 0]) == (255, 255, 255)
    left, right = figures[0].axes
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("loss", "accuracy")
    assert left.get_xlabel() == right.get_xlabel() == "epoch"
    for axes, name in ((left, "loss"), (right, "accuracy")):
        for line, who in zip(axes.lines[:2], ("train", "eval"), strict=True):
            assert line.get_label() == who
            assert list(line.get_xdata()) == [1, 2, 3, 4, 5]
            assert list(line.get_ydata()) == [getattr(record, who)[name] for record in run(5)]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["train", "eval"]


@pytest.mark.parametrize("epochs", [1, 3, 301])
def test_epochs_are_whole_numbers(tmp_path: Path, figures: list[Figure], epochs: int) -> None:
    draw_curves(run(epochs), tmp_path / "curves.png", metric="accuracy")
    for axes in figures[0].axes:
        low, high = axes.get_xlim()
        shown = [tick.get_text() for tick in axes.get_xticklabels() if low <= tick.get_position()[0] <= high]
        assert 1 <= len(shown) <= 9
        assert set(shown) <= {str(number) for number in range(1, epochs + 1)}
    plain = pixels(tmp_path / "curves.png")[50:480, 110:500]  # without the legend, whose marks are as large
    assert all(count(plain, color) > 20 for color in (drawing.TRAIN, drawing.EVAL))


@pytest.mark.parametrize(("higher", "best", "value"), [(True, 3, "0.8"), (False, 2, "0.25")])
def test_the_best_epoch_is_marked(tmp_path: Path, figures: list[Figure], higher: bool, best: int, value: str) -> None:
    records = [epoch(number, evaluated=found) for number, found in enumerate([0.5, 0.25, 0.8, 0.7], 1)]
    draw_curves(records, tmp_path / "curves.png", metric="accuracy", higher_is_better=higher)
    left, right = figures[0].axes
    assert right.get_title(loc="right") == f"best {value}, epoch {best}"
    assert [float(line.get_xdata()[0]) for line in (left.lines[-1], *right.lines[-2:])] == [best] * 3
    assert right.lines[-1].get_ydata() == [float(value)]


def test_values_that_are_missing_or_not_finite_are_left_out(tmp_path: Path, figures: list[Figure]) -> None:
    records = [epoch(1, loss=1.0), epoch(2, loss=math.nan), epoch(3, loss=math.inf), epoch(4, loss=0.5, evaluated=0.9)]
    draw_curves(records, tmp_path / "curves.png", metric="accuracy")
    left, right = figures[0].axes
    assert list(left.lines[0].get_xdata()) == [1, 4]
    assert list(right.lines[0].get_xdata()) == [4]  # training has no accuracy
    assert left.get_xlim() == (0.5, 4.5)
    draw_curves([epoch(1), epoch(2)], tmp_path / "curves.png", metric="accuracy")  # without an evaluation
    assert count(pixels(tmp_path / "curves.png"), drawing.EVAL) == 0
    assert figures[1].axes[1].get_title(loc="right") == ""


@pytest.mark.parametrize("records", [[], [epoch(1, loss=math.nan), epoch(2, loss=math.nan)]])
def test_where_there_is_nothing_the_picture_says_so(
    tmp_path: Path, figures: list[Figure], records: list[EpochRecord]
) -> None:
    assert draw_curves(records, tmp_path / "curves.png", metric="nme", higher_is_better=False)
    assert pixels(tmp_path / "curves.png").min() < 128
    assert [texts(axes) for axes in figures[0].axes] == [["no values"]] * 2


def test_a_loss_of_many_decades_is_drawn_on_a_logarithmic_scale(tmp_path: Path, figures: list[Figure]) -> None:
    for losses in ((1.0, 0.001), (1.0, 0.1), (1.0, 0.0)):
        draw_curves([epoch(i, loss=v) for i, v in enumerate(losses, 1)], tmp_path / "curves.png", metric="f1")
    assert [figure.axes[0].get_yscale() for figure in figures] == ["log", "linear", "linear"]
    assert "0.01" in [label.get_text() for label in figures[0].axes[0].get_yticklabels()]


def test_what_cannot_be_written_is_one_line_and_the_old_picture_stays(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"curves\.png: expected to write it, found: No such file"):
        draw_curves(run(2), tmp_path / "missing" / "curves.png", metric="accuracy")
    path = tmp_path / "old.png"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), drawing.sheet(path, 4, 3):
        raise KeyError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


# --- the confusion matrix


def cell(picture: NDArray[np.uint8], axes: Any, row: int, column: int) -> NDArray[np.int64]:
    """The color near the corner of a cell, where no count is written."""
    x, y = axes.transData.transform((column - 0.4, row - 0.4))
    return picture[len(picture) - round(y), round(x)].astype(np.int64)


def test_colors_are_shares_of_a_true_class(tmp_path: Path, figures: list[Figure]) -> None:
    draw_confusion(np.array([[1, 1, 0], [0, 0, 0], [0, 10, 990]]), ["ant", "bee", "cat"], tmp_path / "confusion.png")
    picture = pixels(tmp_path / "confusion.png")
    axes = figures[0].axes[0]
    half, other_half = cell(picture, axes, 0, 0), cell(picture, axes, 0, 1)
    none, percent, most = cell(picture, axes, 0, 2), cell(picture, axes, 2, 1), cell(picture, axes, 2, 2)
    assert half.tolist() == other_half.tolist()
    assert most.sum() < half.sum() < percent.sum() < none.sum()
    assert none.sum() - percent.sum() > 30  # one percent can be seen
    assert cell(picture, axes, 1, 0).tolist() == list(ImageColor.getrgb(drawing.EMPTY))
    assert axes.get_ylabel() == "true class (gray: no samples)"
    assert axes.get_xlabel() == "predicted class"
    assert axes.get_title(loc="left") == "98.9% of 1,002 right"


def test_cells_hold_their_counts_up_to_twenty_classes(tmp_path: Path, figures: list[Figure]) -> None:
    for classes in (20, 21):
        matrix = np.arange(classes**2).reshape(classes, classes)
        draw_confusion(matrix, [str(i) for i in range(classes)], tmp_path / "confusion.png")
    few, many = (figure.axes[0] for figure in figures)
    assert texts(few) == [str(number) for number in range(400)]
    assert few.texts[25].get_position() == (5, 1)  # row 1, column 5
    assert texts(many) == []
    for number, text in enumerate(few.texts):  # dark on bright, bright on dark
        dark = number > 0 and number / sum(range(number // 20 * 20, number // 20 * 20 + 20)) > 0.31
        assert (text.get_color() == "white") == dark


@pytest.mark.parametrize("classes", [1, 51, 1000])
def test_long_lists_of_classes_are_thinned(tmp_path: Path, figures: list[Figure], classes: int) -> None:
    names = [f"class {i}" for i in range(classes)]
    draw_confusion(np.eye(classes, dtype=np.int64), names, tmp_path / "confusion.png")
    height, width, _ = pixels(tmp_path / "confusion.png").shape
    assert 400 < height < 2000
    assert 400 < width < 2200
    axes = figures[0].axes[0]
    step = math.ceil(classes / 50)
    for axis in (axes.xaxis, axes.yaxis):
        assert [label.get_text() for label in axis.get_ticklabels()] == names[::step]
        assert axis.get_ticklocs().tolist() == list(range(0, classes, step))


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("classes", [3, 20])
def test_names_lie_within_the_picture_and_apart(tmp_path: Path, figures: list[Figure], classes: int) -> None:
    for name in ("W" * 32, "a class of a long name,", ""):
        names = [f"{name} {i}" for i in range(classes)]
        draw_confusion(np.eye(classes, dtype=np.int64), names, tmp_path / "confusion.png")
        height, width, _ = pixels(tmp_path / "confusion.png").shape
        axes = figures[-1].axes[0]
        for labels, side in ((axes.get_xticklabels(), 0), (axes.get_yticklabels(), 1)):
            boxes = [label.get_window_extent() for label in labels]
            assert all(min(box.min) >= 0 and box.x1 <= width and box.y1 <= height for box in boxes)
            ends = sorted((box.min[side], box.max[side]) for box in boxes)
            assert all(before[1] <= after[0] for before, after in pairwise(ends))
    _, long, short = (figure.axes[0].get_window_extent().height for figure in figures)
    assert long > 0.9 * short  # long names take no room from the matrix


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("$5 or $10", "$5 or $10"),
        (r"$\frac{$", r"$\frac{$"),
        ("_hidden", "_hidden"),
        ("two\nlines", r"two\nlines"),
        ("Käfer, жук, σκαθάρι", "Käfer, жук, σκαθάρι"),
        ("\U0010fffd!", r"\U0010fffd!"),  # no font has it
        ("\U00016ff0!", r"\U00016ff0!"),  # nor this one, though Pillow draws it unlike a missing one
        ("golden retriever of the northern lowlands", "golden retri…rn lowlands"),
    ],
)
def test_names_are_shown_as_they_are(tmp_path: Path, figures: list[Figure], name: str, shown: str) -> None:
    draw_confusion(np.eye(1), [name], tmp_path / "confusion.png")
    assert [label.get_text() for label in figures[0].axes[0].get_yticklabels()] == [shown]


@pytest.mark.parametrize(("shape", "classes"), [((2, 3), 2), ((2, 2), 3), ((0, 0), 0), ((4,), 2)])
def test_shapes_that_do_not_agree_are_refused(
    tmp_path: Path, figures: list[Figure], shape: tuple[int, ...], classes: int
) -> None:
    draw_confusion(np.zeros((2, 2), np.int64), ["ant", "bee"], tmp_path / "none.png")
    assert figures[0].axes[0].get_title(loc="left") == "no samples"
    size = rf"\({classes}, {classes}\)"
    with pytest.raises(OptionError, match=rf"confusion: expected a matrix {size}, .*, found \({shape[0]}"):
        draw_confusion(np.zeros(shape), ["x"] * classes, tmp_path / "confusion.png")
    assert not (tmp_path / "confusion.png").exists()


# --- matplotlib


def test_the_users_own_style_is_put_aside_and_comes_back(tmp_path: Path) -> None:
    draw_curves(run(3), tmp_path / "plain.png", metric="accuracy")
    own = {"text.usetex": True, "figure.facecolor": "black", "font.size": 30, "axes.grid": True, "savefig.dpi": 7}
    with matplotlib.rc_context(own):
        before = dict(matplotlib.rcParams)
        draw_curves(run(3), tmp_path / "own.png", metric="accuracy")
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "own.png").read_bytes() == (tmp_path / "plain.png").read_bytes()


def test_without_matplotlib_nothing_is_drawn_and_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plots_available()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not plots_available()
    assert not draw_curves(run(3), tmp_path / "curves.png", metric="f1")
    assert not draw_confusion(np.eye(2), ["ant", "bee"], tmp_path / "confusion.png")
    assert not list(tmp_path.iterdir())
