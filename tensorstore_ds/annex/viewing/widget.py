"""The viewer as a widget of a notebook, whose page asks this kernel for the bytes of files."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from tensorstore_ds.annex.serving.served_files import PUT_NBYTES, ServedFiles
from tensorstore_ds.annex.viewing.joining import join_modules
from tensorstore_ds.annex.viewing.pages import ViewerPages, page_files
from tensorstore_ds.errors import OptionError, TsdsError

#: Bytes of an answer at most; `widget.js` asks for no more at a time.
PIECE_NBYTES = 4 * 1024**2
_STORE = "store/"
_ID_LENGTH = 100


def _module() -> str:
    files = {name.removeprefix("viewer/"): data.decode() for name, data in page_files().items()}
    return join_modules({name[:-3]: text for name, text in files.items() if name.endswith(".js")}, "widget")


class StoreWidget(anywidget.AnyWidget):
    """A viewer in a notebook, as returned by `tensorstore_ds.show`.

    Attributes:
        view: current view, such as ``split=val&view=scatter``. The page changes it, and you can set it.
        rows: rows of the split that are marked in the page, ascending.
        height: height in pixels.
    """

    _esm = _module()
    _css = page_files()["viewer/style.css"].decode()
    view = traitlets.Unicode().tag(sync=True)
    rows = traitlets.List(traitlets.Int()).tag(sync=True)
    height = traitlets.Int().tag(sync=True)
    _settings = traitlets.Dict().tag(sync=True)

    def __init__(self, files: ServedFiles | None, pages: ViewerPages, *, view: str, height: int) -> None:
        super().__init__(view=view, height=height, _settings=pages.settings)
        self._files = files
        self._pages = pages
        self.on_msg(self._answer)

    def _answer(self, _: object, request: Any, buffers: object) -> None:
        """Answer a message of the page: ``{id, path, start, stop}``, or ``{id, path, text}`` to store a file."""
        match request:
            case {"id": str(number)} if len(number) <= _ID_LENGTH:
                try:
                    size, data = self._do(request)
                except (TsdsError, OSError) as error:
                    self.send({"id": number, "error": str(error)})
                else:
                    self.send({"id": number, "size": size}, [data])

    def _do(self, request: dict[str, Any]) -> tuple[int, bytes]:
        """The size of a file, and the requested bytes."""
        match request:
            case {"path": str(path), "start": int(start), "stop": int(stop)}:
                if not 0 <= start < stop <= start + PIECE_NBYTES:
                    raise OptionError(f"expected 1 to {PIECE_NBYTES:,} bytes of a file, found {start} to {stop}.")
                return self._read(path, slice(start, stop))
            case {"path": str(path), "text": str(text)}:
                if len(text) > PUT_NBYTES or not self._pages.put(path, text.encode(errors="replace")):
                    raise OptionError("this file cannot be written.")
                return 0, b""
        raise OptionError("expected a request of bytes, found another message.")

    def _read(self, path: str, part: slice) -> tuple[int, bytes]:
        found: tuple[int, bytes] | None = None
        if path.startswith(_STORE) and self._files is not None:
            name = path.removeprefix(_STORE)
            found = self._files.use(name, lambda file, content: (file.size, content.read(name, part)))
        elif (page := self._pages.find(path)) is not None:
            found = len(page.data), page.data[part]
        if found is None:
            raise OptionError("there is no such file.")
        return found
