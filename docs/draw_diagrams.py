"""Draw the diagrams of the pages as SVG files beside them, for light and dark themes: ``python docs/draw_diagrams.py``.

A test compares the files with what this script draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).parent
#: Of each kind of box: fill and border in a light theme, and in a dark one.
COLORS = {
    "box": ("#e8edf5", "#9aa7ba", "#232b37", "#56627a"),
    "slow": ("#fde3cf", "#d98a4b", "#4a2f1a", "#d98a4b"),
    "fast": ("#d5efdc", "#5aa873", "#1d3b28", "#5aa873"),
    "gpu": ("#dbeafe", "#5b8fd6", "#1d3a5f", "#5b8fd6"),
}
#: Page, text, quiet text and lines, likewise.
LIGHT, DARK = (
    ("#ffffff", "#1a2029", "#5a6472"),
    ("#12161d", "#e7ebf1", "#a3adba"),
)


def style() -> str:
    """The colors of both themes."""

    def theme(page: str, text: str, quiet: str, first: int) -> str:
        boxes = "".join(
            f".{name}{{fill:{each[first]};stroke:{each[first + 1]}}}"
            for name, each in COLORS.items()
        )
        return (
            f".page{{fill:{page}}}.text{{fill:{text}}}.quiet{{fill:{quiet};font-size:13px}}"
            f".line{{stroke:{quiet};fill:none}}.frame{{stroke:{text};fill:none;stroke-width:2}}.head{{fill:{quiet}}}{boxes}"
        )

    return (
        f"<style>svg{{font:15px system-ui,sans-serif}}{theme(*LIGHT, 0)}"
        f"@media (prefers-color-scheme:dark){{{theme(*DARK, 2)}}}</style>"
    )


class Drawing:
    """Boxes, texts and arrows; all places and sizes in pixels.

    Args:
        width, height: of the drawing.
        label: what it shows, for readers who do not see it.
    """

    def __init__(self, width: int, height: int, label: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(label)}">',
            style(),
            '<defs><marker id="to" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
            '<path class="head" d="M0 0 8 4 0 8z"/></marker></defs>',
            f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
        ]

    def box(
        self,
        x: int,
        y: int,
        width: int,
        height: int,
        text: str = "",
        kind: str = "box",
        under: str = "",
    ) -> None:
        """A box with a line of text in its middle, and a quieter one below that."""
        self._parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="{min(6, height // 4)}"/>'
        )
        middle = y + height // 2 + 5
        if text:
            self.text(
                x + width // 2, middle - (8 if under else 0), text, anchor="middle"
            )
        if under:
            self.text(x + width // 2, middle + 11, under, "quiet", "middle")

    def text(
        self,
        x: int,
        y: int,
        text: str,
        kind: str = "text",
        anchor: str = "start",
        *,
        bold: bool = False,
    ) -> None:
        """A line of text."""
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def arrow(self, path: str, *, head: bool = True) -> None:
        """A line along an SVG path."""
        end = ' marker-end="url(#to)"' if head else ""
        self._parts.append(f'<path class="line" d="{path}"{end}/>')

    def frame(self, x: int, y: int, width: int, height: int) -> None:
        """An empty rectangle over others."""
        self._parts.append(
            f'<rect class="frame" x="{x}" y="{y}" width="{width}" height="{height}"/>'
        )

    def chain(self, y: int, steps: Sequence[tuple[str, str, str]]) -> None:
        """Boxes in a row with arrows between them: of each its text, the text under it, and its kind."""
        for i, (text, under, kind) in enumerate(steps):
            self.box(20 + i * 182, y, 152, 58, text, kind, under)
            if i:
                self.arrow(f"M{20 + i * 182 - 30} {y + 29}h26")

    def svg(self) -> str:
        """The file."""
        return "\n".join([*self._parts, "</svg>\n"])


def image_way() -> Drawing:
    """An image from its file to the GPU."""
    made = Drawing(
        920, 300, "The path of an image: converted once, then loaded in every epoch"
    )
    made.text(20, 34, "Conversion, once", bold=True)
    steps = (
        ("file", "JPEG, PNG, TIFF", "box"),
        ("checked", "bad ones are named", "slow"),
        ("resized, encoded", "boxes move along", "slow"),
        ("shard", "rows of many images", "box"),
        ("store", "appears in one step", "box"),
    )
    made.chain(50, steps)
    made.arrow("M824 108v26H96v62", head=True)
    made.text(
        460, 128, "mapped into memory, by any number of processes", "quiet", "middle"
    )
    made.text(120, 184, "Training, in every epoch", bold=True)
    steps = (
        ("page cache", "the bytes of the store", "box"),
        ("gather", "copy or decode", "fast"),
        ("batch", "in pinned memory", "fast"),
        ("transform", "whole batches", "gpu"),
        ("model", "on the GPU", "gpu"),
    )
    made.chain(200, steps)
    made.text(
        20,
        284,
        "Only the second row is repeated. Threads run it for the next batches while the model works.",
        "quiet",
    )
    return made


def one_copy() -> Drawing:
    """Eight processes that read a store, and eight with a copy each."""
    made = Drawing(
        920,
        330,
        "Eight processes with copies of a data set, and eight that map one store",
    )
    for left, title, under in (
        (20, "Each process reads the files into its own RAM", "eight copies"),
        (480, "Each process maps the same store", "one copy, in the page cache"),
    ):
        made.text(left, 34, title, bold=True)
        made.text(left, 54, under, "quiet")
        for i in range(8):
            x = left + i * 53
            made.box(x, 72, 46, 44, str(i), "gpu")
            if left < 400:
                made.box(x, 126, 46, 130, "", "slow")
            else:
                made.arrow(f"M{x + 23} 116v34")
    made.box(
        480,
        154,
        417,
        102,
        "the store",
        "fast",
        "read-only, dropped and read again if RAM is short",
    )
    made.text(
        20,
        284,
        "8 x the data in memory; a killed process loses its copy",
        "quiet",
    )
    made.text(480, 284, "1 x the data in memory; it stays when a process ends", "quiet")
    made.text(
        20, 310, "0 to 7: training processes, of one job or of several people", "quiet"
    )
    return made


def timeline() -> Drawing:
    """What the loader's threads, the copies and the model do at the same time."""
    made = Drawing(
        920,
        300,
        "Threads gather the next batches while the model works on earlier ones",
    )
    rows = ("thread 1", "thread 2", "copy", "model")
    for i, name in enumerate(rows):
        y = 46 + i * 54
        made.text(20, y + 23, name)
        made.arrow(f"M100 {y + 42}h800", head=False)
    for batch in range(1, 7):
        thread, turn = (batch - 1) % 2, (batch - 1) // 2
        made.box(
            100 + turn * 210 + thread * 60,
            46 + thread * 54,
            150,
            36,
            f"batch {batch}",
            "fast",
        )
    for batch in range(1, 6):
        ready = 100 + ((batch - 1) // 2) * 210 + ((batch - 1) % 2) * 60 + 150
        begins = max(ready, 250 + (batch - 1) * 122)
        made.box(begins, 154, 44, 36, str(batch), "gpu")
        made.box(294 + (batch - 1) * 122, 208, 116, 36, f"step {batch}", "gpu")
    made.text(100, 30, "time", "quiet")
    made.arrow("M134 26h740")
    made.text(
        20,
        280,
        "wait: the model has no batch. Here only before step 1. Each thread keeps prefetch_factor batches ready.",
        "quiet",
    )
    return made


def crop() -> Drawing:
    """The units of a JPEG file that are decoded for a crop."""
    unit, left, top, columns, rows = 30, 20, 64, 20, 8
    made = Drawing(
        920,
        372,
        "A crop of a JPEG file: decoding begins at the entry before it, and ends at its right edge",
    )
    made.text(20, 30, "A JPEG file, in units of 16 x 16 pixels", bold=True)
    made.text(20, 50, "dark edge: an entry, where decoding can begin", "quiet")
    for row in range(rows):
        for column in range(columns):
            needed = 2 <= row <= 5 and 6 <= column <= 12
            passed = 2 <= row <= 5 and 4 <= column < 6
            kind = "fast" if needed else "slow" if passed else "box"
            made.box(left + column * unit, top + row * unit, unit, unit, "", kind)
        for column in range(0, columns, 4):
            x = left + column * unit
            made.arrow(f"M{x + 2} {top + row * unit + 3}v{unit - 6}", head=False)
            made.arrow(f"M{x + 3} {top + row * unit + 3}v{unit - 6}", head=False)
    made.frame(left + 6 * unit + 9, top + 2 * unit + 12, 6 * unit + 6, 3 * unit + 8)
    for i, (kind, text, under) in enumerate(
        (
            ("fast", "decoded", "28 of 160 units: the crop"),
            ("slow", "read, not transformed", "8 units, to reach the crop"),
            ("box", "not touched", "124 units"),
        )
    ):
        made.box(650, 84 + i * 60, 30, 30, "", kind)
        made.text(692, 98 + i * 60, text)
        made.text(692, 116 + i * 60, under, "quiet")
    made.frame(650, 266, 30, 30)
    made.text(692, 286, "the crop")
    made.text(
        20,
        336,
        "An entry is a stored position for every fourth unit of a row. Pixels are resized into the batch. If a crop",
        "quiet",
    )
    made.text(
        20,
        354,
        "is much larger than the input, its units are decoded at 1/2, 1/4 or 1/8. Progressive files are decoded whole.",
        "quiet",
    )
    return made


def ranks() -> Drawing:
    """An epoch on four ranks that goes on on two."""
    made = Drawing(920, 250, "An epoch begins on four ranks, and resumes on two")
    made.text(
        20,
        34,
        "One order of the rows for all ranks, from the seed and the epoch",
        bold=True,
    )
    colors = ("fast", "gpu", "slow", "box")
    for i in range(24):
        count = 4 if i < 12 else 2
        made.box(
            20 + i * 36 + (16 if i >= 12 else 0), 90, 32, 40, str(i), colors[i % count]
        )
    for step in range(3):
        made.text(92 + step * 144, 80, f"step {step + 1}", "quiet", "middle")
    for step in range(6):
        made.text(500 + step * 72, 80, f"step {step + 4}", "quiet", "middle")
    made.arrow("M458 58v92", head=False)
    made.text(458, 168, "stopped here; resumed on 2 ranks", "quiet", "middle")
    for i, name in enumerate(("rank 0", "rank 1", "rank 2", "rank 3")):
        made.box(20 + i * 110, 190, 24, 24, "", colors[i])
        made.text(52 + i * 110, 208, name)
    made.text(
        470,
        208,
        "Each row comes once, except a remainder.",
        "quiet",
    )
    return made


def partial() -> Drawing:
    """The states of OUT.partial."""
    made = Drawing(920, 270, "The states of a conversion: nothing, OUT.partial, OUT")
    made.box(20, 20, 150, 60, "nothing", "box", "no OUT")
    made.box(320, 20, 240, 60, "OUT.partial", "slow", "finished shards and a journal")
    made.box(740, 20, 150, 60, "OUT", "fast", "complete")
    made.arrow("M170 50h146")
    made.text(243, 40, "convert", "quiet", "middle")
    made.arrow("M560 50h176")
    made.text(648, 40, "one rename", "quiet", "middle")
    made.text(648, 68, "when all is on disk", "quiet", "middle")
    made.box(
        320, 150, 240, 60, "interrupted", "box", "Ctrl-C, kill, full disk, power loss"
    )
    made.arrow("M400 80v66")
    made.arrow("M480 150v-66")
    made.text(490, 120, "the same command again", "quiet")
    made.arrow("M320 180H95V84")
    made.text(104, 132, "remove the folder", "quiet")
    made.text(
        20,
        246,
        "Readers see nothing or a complete store. Changed options stop the run and are listed.",
        "quiet",
    )
    return made


DIAGRAMS: dict[str, Callable[[], Drawing]] = {
    "image_way.svg": image_way,
    "one_copy.svg": one_copy,
    "timeline.svg": timeline,
    "crop.svg": crop,
    "ranks.svg": ranks,
    "partial.svg": partial,
}

if __name__ == "__main__":
    for name, drawn in DIAGRAMS.items():
        (DOCS / name).write_text(drawn().svg(), "utf-8")
