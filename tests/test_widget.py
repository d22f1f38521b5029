"""The viewer in a notebook: its module, and what the kernel answers to the page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("anywidget")

import tensorstore_ds as tsds
from small_stores import VALID
from stores import store_of
from tensorstore_ds.annex.viewing.joining import join_modules
from tensorstore_ds.annex.viewing.pages import page_files
from tensorstore_ds.annex.viewing.widget import PIECE_NBYTES, StoreWidget
from widget_comm import PageComm

STORE = VALID / "detection.tsds"
FILES = sorted(path.relative_to(STORE).as_posix() for path in STORE.rglob("*") if path.is_file())


def run_module(text: str, tmp_path: Path) -> str:
    """What a module prints, by Node."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    (tmp_path / "joined.mjs").write_text(text)
    command = ["node", str(tmp_path / "joined.mjs")]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# --- one module -----------------------------------------------------------------------------------------------------


def test_the_page_as_one_module(tmp_path: Path) -> None:
    text = str(StoreWidget._esm)
    assert not re.search(r"^\s*import\b|\bimport\s*\(|\bfrom \"", text, re.MULTILINE)
    assert re.findall(r"^export .*", text, re.MULTILINE) == ["export default { render };"]
    others = {name for name in page_files() if name.endswith(".js")} - {"viewer/main.js", "viewer/widget.js"}
    joined = re.findall(r"^const module_(\w+) = ", text, re.MULTILINE)  # each module once
    assert sorted(joined) == sorted(Path(name).stem for name in others)
    (tmp_path / "page.mjs").write_text(text)
    shown = run_module(
        'import page from "./page.mjs"; console.log(typeof page.render, Object.keys(page).length)', tmp_path
    )
    assert shown == "function 1\n"


def page_module(name: str, lines: str) -> str:
    """Lines that use a module of the page, as a module."""
    texts = {Path(path).stem: data.decode() for path, data in page_files().items() if path.endswith(".js")}
    names = ", ".join(re.findall(r"^export (?:class|function) (\w+)", texts[name], re.MULTILINE))
    return join_modules({**texts, "test": f'import {{ {names} }} from "./{name}.js";\n{lines}'}, "test")


def test_items_without_a_class_or_number_come_last(tmp_path: Path) -> None:
    order = "[false, true].map((isDown) => String(sorted(Uint32Array.from([0, 1, 2, 3]), facet, isDown)))"
    for kind, none in (("class", "-1"), ("number", "NaN")):
        values = f'Float64Array.from([1, {none}, 0, 2]), {{ names: ["a", "b", "c"] }}'
        lines = f'const facet = new Facet("x", "{kind}", {values});\nconsole.log({order}.join(" "));'
        assert run_module(page_module("filters", lines), tmp_path) == "2,0,3,1 3,0,2,1\n"


def test_tags_that_cannot_be_read_are_not_replaced(tmp_path: Path) -> None:
    lines = """
    let [file, isDown] = [{ sha256: "d", tags: { old: { train: [1, 2] } } }, false];
    const read = async () => { if (isDown) throw new Error("503"); return file; };
    const tags = await new Tags("d", { read, write: async (content) => (file = content) }).load();
    isDown = true;
    await tags.set("new", "train", [3], true).catch((error) => console.log(error.message));
    isDown = false;
    await tags.set("new", "train", [4], true);
    console.log(JSON.stringify(file.tags));
    """
    expected = 'the tags could not be read: 503\n{"old":{"train":[1,2]},"new":{"train":[4]}}\n'
    assert run_module(page_module("tags", lines), tmp_path) == expected


def test_equal_names_in_modules_stay_apart(tmp_path: Path) -> None:
    modules = {
        "a": "const KEPT = 1;\nexport function get() {\n  return KEPT;\n}\nexport class Box {}",
        "b": 'import { get } from "./a.js";\nconst KEPT = 20;\nexport const sum = () => get() + KEPT;',
        "c": 'import { Box, get } from "./a.js";\nimport { sum } from "./b.js";\nconst KEPT = 300;\n'
        "console.log(get(), sum(), KEPT, new Box() instanceof Box);\nexport default KEPT;",
        "unused": "this is no module",
    }
    assert run_module(join_modules(modules, "c"), tmp_path) == "1 21 300 true\n"


@pytest.mark.parametrize(
    "text",
    [
        'import * as all from "./b.js";',
        'import "./b.js";',
        'import { x } from "https://example.org/b.js";',
        'import { x } from "../b.js";',
        'export * from "./b.js";',
        "export { x };",
        "export default 1;",
    ],
)
def test_other_imports_and_exports_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match=r"^a\.js: expected imports and exports of names, found "):
        join_modules({"a": text, "b": "", "c": 'import { y } from "./a.js";'}, "c")
    of_b = 'import { b } from "./b.js";'
    with pytest.raises(ValueError, match="cycle"):
        join_modules({"a": of_b, "b": 'import { a } from "./a.js";'}, "a")
    with pytest.raises(KeyError, match="b"):
        join_modules({"a": of_b}, "a")


def test_the_style_is_of_the_viewer_alone() -> None:
    """Blocks at the top level name the viewer, so that no element of a notebook is matched."""
    text = re.sub(r"/\*.*?\*/", "", str(StoreWidget._css), flags=re.DOTALL)
    depth, selectors, start = 0, [], 0
    for at, letter in enumerate(text):
        if letter == "{":
            selectors += [text[start:at].strip()] if depth == 0 else []
            depth += 1
        elif letter == "}":
            depth, start = depth - 1, at + 1
    assert depth == 0
    for selector in selectors:
        assert selector.startswith("@media") or all("#viewer" in s or s == ".viewer" for s in re.split(", ", selector))


# --- messages -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["folder", "packed", "remote"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(STORE)
    elif request.param == "packed":
        yield str(tsds.pack(STORE, tmp_path / "x.zip").path)
    else:
        pytest.importorskip("obstore")
        with tsds.serve(STORE) as url:
            yield url


def ask(comm: PageComm, path: str, start: Any = 0, stop: Any = PIECE_NBYTES, **more: Any) -> tuple[Any, bytes]:
    """The answer to a request, and its bytes."""
    ((content, buffers),) = comm.custom({"id": "a-1", "path": path, "start": start, "stop": stop, **more})
    assert content.pop("id") == "a-1"
    return (content["error"], b"") if "error" in content else (content["size"], *buffers)


def test_the_bytes_of_all_files(place: str) -> None:
    comm = PageComm(tsds.show(place))
    for name in FILES:
        data = (STORE / name).read_bytes()
        assert ask(comm, f"store/{name}") == (len(data), data), name
        for start, stop in [(0, 1), (3, 11), (len(data) - 1, len(data)), (5, PIECE_NBYTES), (len(data) + 9, 2**40)]:
            if stop - start <= PIECE_NBYTES:
                assert ask(comm, f"store/{name}", start, stop) == (len(data), data[start:stop]), (name, start)


def test_a_file_of_several_pieces(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (1100, 1400, 3), np.uint8)
    store = store_of(tmp_path / "s.tsds", [{"image": image}] * 2, layout="memmap", encoding="raw")
    (path,) = (path for path in store.path.rglob("*") if path.is_file() and path.stat().st_size > PIECE_NBYTES)
    name, data = path.relative_to(store.path).as_posix(), path.read_bytes()
    comm = PageComm(tsds.show(store))
    pieces = [ask(comm, f"store/{name}", at, at + PIECE_NBYTES) for at in range(0, len(data), PIECE_NBYTES)]
    assert len(pieces) == 3 and {size for size, _ in pieces} == {len(data)}
    assert b"".join(piece for _, piece in pieces) == data


PATHS = (
    *("store/../secret.txt", "store/train/../../secret.txt", "store//etc/hostname", "/etc/hostname", "../secret.txt"),
    *("secret.txt", "store/unlisted.txt", "store/train/00000/unlisted.txt", "store/train/000000/zarr.json"),
    *("store/train/00009/zarr.json", "store/train/00000/../00000/zarr.json", "store/link", "store/", "store/train"),
    *("zarr.json", "store/zarr.json\0", "store/" + "a" * 100_000),
)


def test_no_other_files(tmp_path: Path) -> None:
    shutil.copytree(STORE, tmp_path / "x.tsds")
    for name in ("secret.txt", "x.tsds/unlisted.txt", "x.tsds/train/00000/unlisted.txt"):
        (tmp_path / name).write_text("secret")
    (tmp_path / "x.tsds/link").symlink_to(tmp_path / "secret.txt")
    comm = PageComm(tsds.show(tmp_path / "x.tsds"))
    assert {path for path in PATHS if ask(comm, path) != ("there is no such file.", b"")} == set()


RANGE = {"id": "1", "path": "store/zarr.json", "start": 0, "stop": 5}
NO_REQUEST = "expected a request of bytes, found another message."


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        *(
            ({"start": start, "stop": stop}, f"expected 1 to 4,194,304 bytes of a file, found {start} to {stop}.")
            for start, stop in (
                *((-1, 5), (5, 5), (6, 5), (0, PIECE_NBYTES + 1)),
                *((0, 2**80), (-(2**80), 4), (2**80, 2**81)),
            )
        ),
        *(({name: None}, NO_REQUEST) for name in ("path", "start", "stop")),
        *(({"path": path}, NO_REQUEST) for path in (5, ["store/zarr.json"])),
        *(({"start": start}, NO_REQUEST) for start in (0.5, "0")),
        ({"text": {}, "start": None}, NO_REQUEST),
        *(({"id": name}, None) for name in (5, None, "x" * 101, ["1"])),  # no answer without an id
    ],
)
def test_requests_that_are_none(changes: dict[str, Any], error: str | None) -> None:
    comm = PageComm(tsds.show(STORE))
    assert comm.custom({**RANGE, **changes}) == ([({"id": "1", "error": error}, [])] if error else [])
    assert comm.custom({"id": "1"}) == [({"id": "1", "error": NO_REQUEST}, [])]
    assert [comm.custom(content) for content in (None, 5, "x", [], {})] == [[]] * 5


def test_a_damaged_file_is_an_answer(tmp_path: Path) -> None:
    shutil.copytree(STORE, tmp_path / "x.tsds")
    comm = PageComm(tsds.show(tmp_path / "x.tsds"))
    (tmp_path / "x.tsds/train/00000/image/c/0/0/0/0").unlink()
    error, _ = ask(comm, "store/train/00000/image/c/0/0/0/0")
    assert "train/00000/image/c/0/0/0/0: this file cannot be " in error
    shutil.rmtree(tmp_path / "x.tsds")
    assert "x.tsds" in ask(comm, "store/zarr.json")[0]


def test_a_store_that_grows_is_seen(tmp_path: Path) -> None:
    samples = [(np.full((4, 4, 3), i, np.uint8), 0) for i in range(3)]
    store = store_of(tmp_path / "s.tsds", samples, ["ant"])
    comm = PageComm(tsds.show(store))
    before = ask(comm, "store/zarr.json")
    tsds.annotate(store.path, description="more")
    _, now = ask(comm, "store/zarr.json")
    assert now == (store.path / "zarr.json").read_bytes() != before[1]


# --- what else the page is told -------------------------------------------------------------------------------------


def test_tags_are_kept_beside_a_local_store(tmp_path: Path) -> None:
    shutil.copytree(STORE, tmp_path / "x.tsds")
    widget = tsds.show(tmp_path / "x.tsds")
    comm, tags = PageComm(widget), tmp_path / "x.tsds.tags.json"
    assert widget._settings["tags"] == "tags.json" and ask(comm, "tags.json") == (2, b"{}")
    text = json.dumps({"sha256": "0", "tags": {"wrong": {"train": [1]}}})
    assert comm.custom({"id": "1", "path": "tags.json", "text": text}) == [({"id": "1", "size": 0}, [b""])]
    assert tags.read_text() == text and ask(comm, "tags.json")[1] == text.encode()
    for path, other in [("tags.json", "no"), ("x.txt", text), ("store/zarr.json", text), ("../x.json", text)]:
        ((answer, _),) = comm.custom({"id": "1", "path": path, "text": other})
        assert answer["error"] == "this file cannot be written."
    ((answer, _),) = comm.custom({"id": "1", "path": "tags.json", "text": text + " " * 2**24})
    assert answer["error"] == "this file cannot be written." and tags.read_text() == text


def test_findings(tmp_path: Path) -> None:
    found = tsds.checking.CheckFindings(samples=3)
    found.save(tmp_path / "findings.json")
    data = (tmp_path / "findings.json").read_bytes()
    for given in (found, tmp_path / "findings.json"):
        widget = tsds.show(STORE, findings=given)
        assert ask(PageComm(widget), widget._settings["findings"]) == (len(data), data)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(tsds.OptionError, match="expected findings that"):
        tsds.show(STORE, findings=tmp_path / "other.json")


def test_a_training_run(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text('{"epoch": 1}\n')
    widget = tsds.show(tmp_path)
    (run,) = widget._settings["runs"]
    comm = PageComm(widget)
    assert ask(comm, run["url"]) == (13, b'{"epoch": 1}\n')
    assert "store" not in widget._settings and ask(comm, "store/zarr.json") == ("there is no such file.", b"")


def test_the_state_of_the_widget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tsds.open(STORE)
    widget = tsds.show(store, split=store.splits[-1], height=300)
    comm = PageComm(widget)
    assert (widget.view, widget.height, widget.rows) == (f"split={store.splits[-1]}", 300, [])
    comm.receive({"method": "update", "state": {"view": "view=scatter", "rows": [4, 7]}})
    assert (widget.view, widget.rows) == ("view=scatter", [4, 7])
    widget.view = "at=9"
    assert comm.sent[-1][0] == {"method": "update", "state": {"view": "at=9"}, "buffer_paths": []}
    with pytest.raises(tsds.errors.UnknownNameError, match="other"):
        tsds.show(store, split="other")
    with pytest.raises(tsds.OptionError, match="`height`: expected 200 to 10,000 pixels, found 5"):
        tsds.show(store, height=5)


def test_after_a_change_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(STORE.parent)
    comms = [PageComm(tsds.show(each)) for each in (STORE.name, tsds.open(STORE.name))]
    monkeypatch.chdir(tmp_path)
    for comm in comms:
        assert ask(comm, "store/zarr.json")[1] == (STORE / "zarr.json").read_bytes()


def test_no_secret_of_a_url_reaches_the_page() -> None:
    pytest.importorskip("obstore")
    with tsds.serve(STORE) as url:
        widget = tsds.show(f"{url}?key=secret")
        assert ask(PageComm(widget), "store/zarr.json")[1] == (STORE / "zarr.json").read_bytes()
    assert widget._settings["path"] == url and "secret" not in json.dumps(widget.get_state(), default=str)


def test_without_anywidget() -> None:
    code = (
        "import sys; sys.modules['anywidget'] = None\nimport tensorstore_ds as tsds\n"
        f"try: tsds.show({str(STORE)!r})\nexcept tsds.OptionError as error: print(error)"
    )
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "anywidget is needed: pip install '.[notebook]'" in shown


def test_in_a_kernel() -> None:
    """In a real kernel, as a browser would get it."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = ["import tensorstore_ds as tsds", f"widget = tsds.show({str(STORE)!r}); widget", "widget.view"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=60, store_widget_state=True).execute()
    (shown,) = notebook.cells[1].outputs
    model = shown["data"]["application/vnd.jupyter.widget-view+json"]["model_id"]
    states = notebook.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    state = states[model]["state"]
    assert state["_esm"] == str(StoreWidget._esm) and state["_css"] == str(StoreWidget._css)
    assert state["_settings"]["title"] == "detection.tsds" and state["height"] == 600
