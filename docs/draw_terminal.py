"""Draw a terminal in which the first commands are typed, as docs/terminal.svg: ``python docs/draw_terminal.py``.

The commands and their outputs come from docs/commands, which `tests/command_pages.py` writes. A test compares the file
with the drawing.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).parent
PICTURE = DOCS / "terminal.svg"
#: The pages, of each the first command of its example.
PAGES = ("convert", "verify", "train")
#: Letters of a line, lines of a command at most, and sizes in pixels.
LETTERS, LINES, WIDTH, LINE, LEFT = 104, 10, 920, 19, 20
#: Seconds: to type a letter, before a command runs, of a line that it prints, and before the next command.
TYPED, RUNS, PRINTED, NEXT = 0.03, 0.5, 0.12, 1.0
STYLE = """
  svg { font: 14px ui-monospace, monospace; }
  .page { fill: #12161d; }
  text { fill: #d5dbe4; white-space: pre; }
  .prompt { fill: #5aa873; }
  .late { opacity: 0; animation: shown 0s forwards; }
  @keyframes shown { to { opacity: 1; } }
  @media (prefers-reduced-motion: reduce) { .late { opacity: 1; animation: none; } }
"""


def shown(name: str) -> list[str]:
    """The first command of a page's example, and the lines that it prints, those in the middle left out."""
    page = (DOCS / "commands" / f"{name}.md").read_text("utf-8")
    console = re.search(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    if console is None:
        raise ValueError(f"{name}.md has no example")
    text = console[1].partition("\n\n$ ")[0].rstrip("\n")
    # The pages begin with a store of this name, which was made with these options.
    lines = text.replace("squares.tsds", "photos.tsds").splitlines()
    if len(lines) > LINES:
        lines = [*lines[: LINES - 4], "  ...", *lines[-3:]]
    return [
        line if len(line) <= LETTERS else f"{line[: LETTERS - 3]}..." for line in lines
    ]


def draw() -> str:
    """The picture as SVG."""
    parts, y, time = list[str](), 34, 0.5
    for name in PAGES:
        command, *printed = shown(name)
        for i, letter in enumerate(command.removeprefix("$ ")):
            if letter == " ":
                continue
            x = LEFT + (i + 2) * 8.43
            delay = time + i * TYPED
            parts.append(
                f'<text class="late" x="{x:.1f}" y="{y}" style="animation-delay:{delay:.2f}s">{escape(letter)}</text>'
            )
        parts.append(
            f'<text class="prompt late" x="{LEFT}" y="{y}" style="animation-delay:{time - 0.4:.2f}s">$</text>'
        )
        time += len(command) * TYPED + RUNS
        for line in printed:
            y += LINE
            parts.append(
                f'<text class="late" x="{LEFT}" y="{y}" style="animation-delay:{time:.2f}s">{escape(line)}</text>'
            )
            time += PRINTED
        y += LINE + 9
        time += NEXT
    label = "A terminal: photos are converted, verified, and trained on"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img" aria-label="{label}">',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{WIDTH}" height="{y}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), "utf-8")
