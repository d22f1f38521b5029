"""hf:// against a small server that speaks the Hub's routes: the Hub itself is not asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from remote.hub_server import NAME, TOKEN, Hub, hub_server
from small_stores import tsds as command
from stores import files_of, store_of
from tensorstore_ds.remote.hub import HubPlace, parse

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # what httpx says of its caller


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as made:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", made.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield made


def test_there_and_back(hub: Hub, store: tsds.Store, tmp_path: Path) -> None:
    url = f"hf://datasets/{NAME}/s.tsds"
    done = tsds.push(store.path, url)
    assert (done.place, done.sha256, done.was_there) == (url, store.sha256, False)
    before, after = list(hub.commits.values())[-2:]
    assert after.keys() - before.keys() == {"s.tsds/zarr.json"}
    assert {n.removeprefix("s.tsds/"): d for n, d in after.items() if n != "README.md"} == files_of(store.path)
    assert tsds.push(store.path, url).was_there
    commit = hub.head
    hub.commit({"s.tsds/zarr.json": b"changed later"})
    hub.requests.clear()
    tsds.pull(f"hf://datasets/{NAME}@{commit}/s.tsds", tmp_path / "p.tsds")
    assert files_of(tmp_path / "p.tsds") == files_of(store.path)
    asked = [path for _, path, _ in hub.requests if path.startswith("/api/")]
    assert len(asked) == 1
    assert all(f"/resolve/{commit}/" in path for _, path, _ in hub.requests if "/resolve/" in path)


def test_the_token_goes_to_the_hub_alone(hub: Hub, store: tsds.Store, tmp_path: Path) -> None:
    tsds.push(store.path, f"hf://datasets/{NAME}/s.tsds")
    hub.requests.clear()
    tsds.pull(f"hf://datasets/{NAME}/s.tsds", tmp_path / "p.tsds")
    tokens = {path.split("/")[1]: token for _, path, token in hub.requests}
    assert tokens == {"api": f"Bearer {TOKEN}", "datasets": f"Bearer {TOKEN}", "large": None}


def test_a_store_that_was_changed(hub: Hub, tmp_path: Path) -> None:
    rows = [{"image": np.full((9, 9, 3), i, np.uint8), "label": i % 2} for i in range(4)]
    path, url = store_of(tmp_path / "s.tsds", rows, ["a", "b"]).path, f"hf://datasets/{NAME}/s.tsds"
    (path / "zarr.json.sig").write_bytes(b"of the first state")
    tsds.push(path, url)
    assert "s.tsds/zarr.json.sig" in hub.commits[hub.head]
    (path / "zarr.json.sig").unlink()
    tsds.editing.add_fields(path, {"loss": {"train": np.arange(4.0)}})
    with pytest.raises(tsds.errors.StoreExistsError, match="found it as it was before"):
        tsds.push(path, url)
    tsds.push(path, url, update=True)
    assert tsds.pull(url, tmp_path / "p.tsds", verify=True).sha256 == tsds.open(path).sha256
    assert not any("/00000/loss/" in name for name in hub.commits[hub.head])
    assert "s.tsds/zarr.json.sig" not in hub.commits[hub.head]
    assert tsds.push(path, url, update=True).was_there


def test_a_commit_in_between_is_no_half_store(
    hub: Hub, store: tsds.Store, other: tsds.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import HfApi

    upload = HfApi.upload_folder

    def interrupted(*args: Any, **others: Any) -> Any:
        made = upload(*args, **others)
        hub.commit({"README.md": b"# Something else"})
        return made

    with monkeypatch.context() as patch:
        patch.setattr(HfApi, "upload_folder", interrupted)
        with pytest.raises(tsds.RemoteError, match="the server answers 412"):
            tsds.push(store.path, f"hf://datasets/{NAME}/s.tsds")
    assert "s.tsds/zarr.json" not in hub.commits[hub.head]
    puts = sum(method == "PUT" for method, _, _ in hub.requests)
    assert not tsds.push(store.path, f"hf://datasets/{NAME}/s.tsds").was_there
    assert sum(method == "PUT" for method, _, _ in hub.requests) == puts


@pytest.mark.parametrize("moment", ["before its files", "before its root"])
def test_another_store_is_pushed_meanwhile(
    hub: Hub, store: tsds.Store, other: tsds.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Whole, between two steps of a push: it is whole afterwards, and the first push is refused."""
    from huggingface_hub import HfApi

    step = "upload_folder" if moment == "before its files" else "create_commit"
    real, url, begun = getattr(HfApi, step), f"hf://datasets/{NAME}/s.tsds", list[str]()

    def later(*args: Any, **others: Any) -> Any:
        is_root = step == "upload_folder" or "the store" in others.get("commit_message", "")
        if is_root and not begun:
            begun.append(step)
            tsds.push(other.path, url)
        return real(*args, **others)

    monkeypatch.setattr(HfApi, step, later)
    with pytest.raises(tsds.errors.StoreExistsError, match=other.sha256[:12]):
        tsds.push(store.path, url)
    assert begun
    assert tsds.pull(url, tmp_path / "pulled.tsds", verify=True).sha256 == other.sha256
    if moment == "before its files":  # else files of the first one stay, which the store does not list
        assert {name for name in hub.commits[hub.head] if name.startswith("s.tsds/")} == {
            f"s.tsds/{path.relative_to(other.path).as_posix()}" for path in other.path.rglob("*") if path.is_file()
        }


def test_what_is_not_there(hub: Hub, store: tsds.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url, words in {
        "hf://datasets/me/nothing/s.tsds": "there is no such data set, or access is refused",
        f"hf://datasets/{NAME}@v9/s.tsds": "hf://datasets/me/photos@v9/s.tsds: ",
        f"hf://datasets/{NAME}/nothing": "this is not a store",
    }.items():
        done = command("pull", url, tmp_path / "p.tsds")
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert words in done.stderr and TOKEN not in done.stderr
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    done = command("push", store.path, f"hf://datasets/{NAME}/s.tsds")
    assert "access is refused" in done.stderr and "hf_wrong" not in done.stderr


def test_other_files_are_not_published(hub: Hub, store: tsds.Store, tmp_path: Path) -> None:
    tsds.copy(store.path, tmp_path / "s.tsds")
    (tmp_path / "s.tsds/train/notes.txt").write_text("private")
    with pytest.raises(tsds.FormatError, match=r"train/notes\.txt: this file is not listed"):
        tsds.push(tmp_path / "s.tsds", f"hf://datasets/{NAME}/s.tsds")
    with pytest.raises(tsds.OptionError, match="expected a folder for the store"):
        tsds.push(store.path, f"hf://datasets/{NAME}")


def test_a_damaged_store_is_not_published(hub: Hub, store: tsds.Store, tmp_path: Path) -> None:
    tsds.copy(store.path, tmp_path / "s.tsds")
    file = next(path for path in (tmp_path / "s.tsds/train/00000/image").rglob("c/**/*") if path.is_file())
    data = file.read_bytes()
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(tsds.FormatError, match=r"expected SHA-256 .* This store is damaged: nothing was published"):
        tsds.push(tmp_path / "s.tsds", f"hf://datasets/{NAME}/s.tsds")
    assert [*hub.commits[hub.head]] == ["README.md"]


def test_urls() -> None:
    assert parse("hf://datasets/a/b@refs/pr/3/x/y/") == HubPlace("a/b", "refs/pr/3", "x/y")
    assert parse("hf://datasets/a/b@v1.0") == HubPlace("a/b", "v1.0", "")
    assert parse("hf://datasets/a/b@refs%2Fpr%2F3/x").url == "hf://datasets/a/b@refs/pr/3/x"
    branch = "hf://datasets/a/b@feature%2Fx/y"
    assert parse(branch) == HubPlace("a/b", "feature/x", "y") and parse(branch).url == branch
    for wrong in ("hf://a/b", "hf://datasets/a", "hf://datasets/a/b/../c", "hf://datasets/a b/c", "hf://models/a/b"):
        with pytest.raises(tsds.OptionError, match="expected hf://datasets/USER/NAME"):
            parse(wrong)
