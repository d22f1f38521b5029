"""OUT.partial: whose it is, what is left in it by a crash, and what is done with that."""

import errno
import fcntl
import os
import shutil

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from stores import class_folders, contents, interrupted, png_bytes
from tensorstore_ds.conversion.blocks import BlockResult
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.shard_writer import ShardWriter
from tensorstore_ds.format.kinds import KeyField
from tensorstore_ds.format.statistics import Statistics
from tensorstore_ds.options import flags

IN_SHARDS = ConvertOptions(workers=0, shard_nbytes=60)  # two images of 30 bytes a shard


@pytest.fixture
def folders(tmp_path):
    return class_folders(tmp_path / "src")


@pytest.fixture
def partial(tmp_path):
    return tmp_path / "o.tsds.partial"


def fresh(source, tmp_path, options=IN_SHARDS):
    tsds.convert(source, tmp_path / "fresh.tsds", options)
    return contents(tmp_path / "fresh.tsds")


# --- whose it is ------------------------------------------------------------------------------------------------


@pytest.fixture
def thesis(tmp_path):
    folder = tmp_path / "thesis"
    (folder / "chapter").mkdir(parents=True)
    (folder / "chapter" / "one.txt").write_text("once")
    return folder


def refused(source, out, thesis):
    """The conversion is refused with one line, and what a link leads to is as it was."""
    before = {path.name for path in out.with_name("o.tsds.partial").iterdir()}
    with pytest.raises(tsds.OptionError, match=r"^[^\n]*o\.tsds\.partial: expected [^\n]* found [^\n]*Move it away"):
        tsds.convert(source, out, IN_SHARDS)
    assert before <= {path.name for path in out.with_name("o.tsds.partial").iterdir()} <= before | {"journal"}
    assert (thesis / "chapter" / "one.txt").read_text() == "once"


@pytest.mark.parametrize("name", ["store", "journal", "plan.json", "tsds.lock"])
@pytest.mark.parametrize("marked", [False, True])
def test_a_link_that_was_planted_is_not_followed(folders, out, partial, thesis, name, marked):
    partial.mkdir()
    if marked:
        (partial / "tsds.lock").touch()
    (partial / name).unlink(missing_ok=True)
    (partial / name).symlink_to(thesis / "chapter" / "one.txt" if name in ("plan.json", "tsds.lock") else thesis)
    if marked and name == "plan.json":  # a name of ours that is no file of ours: it is replaced, not written through
        tsds.convert(folders, out, IN_SHARDS)
        assert (thesis / "chapter" / "one.txt").read_text() == "once"
    else:
        refused(folders, out, thesis)


def test_links_in_place_of_splits_and_shards_are_removed_and_not_followed(folders, out, partial, thesis, tmp_path):
    interrupted(folders, out, 9, IN_SHARDS)
    shutil.rmtree(partial / "store" / "test")
    (partial / "store" / "test").symlink_to(thesis)
    (partial / "store" / "train" / "00009").symlink_to(thesis)
    (partial / "journal" / "train-00009.json").symlink_to(thesis / "chapter" / "one.txt")
    tsds.convert(folders, out, IN_SHARDS)
    assert (thesis / "chapter" / "one.txt").read_text() == "once"
    assert contents(out) == fresh(folders, tmp_path)


def test_a_folder_of_that_name_that_no_conversion_made_is_left_alone(folders, out, partial, thesis):
    shutil.copytree(thesis, partial)
    refused(folders, out, thesis)
    assert (partial / "chapter" / "one.txt").read_text() == "once"


@pytest.mark.parametrize("kind", ["link", "file"])
def test_something_else_of_that_name(folders, out, partial, thesis, kind):
    if kind == "link":
        partial.symlink_to(thesis)
    else:
        partial.write_text("mine")
    with pytest.raises(tsds.OptionError, match="found something else"):
        tsds.convert(folders, out, IN_SHARDS)
    assert (thesis / "chapter" / "one.txt").read_text() == "once" and os.path.lexists(partial)


def test_a_pipe_as_its_mark(folders, out, partial, thesis):
    partial.mkdir()
    os.mkfifo(partial / "tsds.lock")
    refused(folders, out, thesis)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
@pytest.mark.parametrize("marked", [False, True])
def test_a_folder_of_another_user(folders, out, partial, thesis, marked):
    partial.mkdir(0o777)
    if marked:
        (partial / "tsds.lock").touch()
        os.chown(partial / "tsds.lock", 12345, 12345)
        (partial / "store").symlink_to(thesis)
    os.chown(partial, 12345, 12345)
    with pytest.raises(tsds.OptionError, match="found a folder of another user"):
        tsds.convert(folders, out, IN_SHARDS)
    assert sorted(os.listdir(partial)) == (["store", "tsds.lock"] if marked else [])
    assert (thesis / "chapter" / "one.txt").read_text() == "once"


def test_nobody_else_may_enter_it(folders, out, partial):
    interrupted(folders, out, 9, IN_SHARDS)
    assert partial.stat().st_mode & 0o777 == 0o700
    tsds.convert(folders, out, IN_SHARDS)
    assert out.stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


# --- after a crash ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.drawn(5)
@pytest.mark.parametrize("data", [None, b"", b"null", b"{}", b"\xff\xfe\0", b"\0" * 300, "half", "flipped", "folder"])
@pytest.mark.parametrize("name", ["plan.json", "journal/train-00001.json"])
def test_a_plan_or_a_journal_that_cannot_be_read(folders, out, partial, tmp_path, name, data):
    interrupted(folders, out, 9, IN_SHARDS)
    path = partial / name
    written = path.read_bytes()
    if data is None or data == "folder":
        path.unlink()
    if data == "folder":
        path.mkdir()
    elif isinstance(data, str):
        path.write_bytes(written[: len(written) // 2] if data == "half" else written.replace(b"2", b"3", 1))
    elif data is not None:
        path.write_bytes(data)
    summary = tsds.convert(folders, out, IN_SHARDS)
    assert contents(out) == fresh(folders, tmp_path)
    if name == "plan.json":
        assert summary.resumed == 0
        assert [note.endswith("cannot be read. The work starts anew.") for note in summary.notes] == [True]
    else:
        assert summary.resumed == 3
        discarded = "1 finished shard is not used, but converted again: their records cannot be read."
        found = [note.partition(".partial: ")[2] for note in summary.notes]
        assert found == [discarded] * (data is not None)


def test_a_shard_that_is_not_what_the_journal_says(folders, out, partial, tmp_path):
    """No crash does this; but what does not open is not committed, and nothing of it is used again."""
    interrupted(folders, out, 9, IN_SHARDS)
    data = next((partial / "store" / "train" / "00001").rglob("image/c/0/0/0/0"))
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(tsds.errors.ConversionError, match=r"does not open .* Run the same command again"):
        tsds.convert(folders, out, IN_SHARDS)
    assert not out.exists()
    assert tsds.convert(folders, out, IN_SHARDS).resumed == 0
    assert contents(out) == fresh(folders, tmp_path)


def test_what_a_run_leaves_that_was_killed_after_its_commit(folders, out, partial, tmp_path):
    interrupted(folders, out, 9, IN_SHARDS)
    shutil.copytree(partial, tmp_path / "left")
    tsds.convert(folders, out, IN_SHARDS)
    shutil.rmtree(tmp_path / "left" / "store")

    shutil.copytree(tmp_path / "left", partial)
    with pytest.raises(tsds.errors.StoreExistsError):
        tsds.convert(folders, out, IN_SHARDS)
    assert not partial.exists()

    shutil.copytree(tmp_path / "left", partial)
    out.rename(tmp_path / "elsewhere.tsds")
    tsds.convert(folders, out, ConvertOptions(workers=0, size=(3, 3)))
    assert not partial.exists() and tsds.open(out)["train"]["image"].shape == (8, 3, 3, 1)


def test_finished_shards_beside_another_store_are_kept(folders, out, partial):
    interrupted(folders, out, 9, IN_SHARDS)
    out.mkdir()
    with pytest.raises(tsds.errors.StoreExistsError):
        tsds.convert(folders, out, IN_SHARDS)
    out.rmdir()
    assert tsds.convert(folders, out, IN_SHARDS).resumed == 4


def fail_at(monkeypatch, call, number, wanted):
    """Let a function of `os` fail once for what `wanted` says."""
    real = getattr(os, call)

    def failing(*args, **kwargs):
        if wanted(*args, **kwargs):
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, call, failing)


def test_a_disk_that_fails_while_the_store_is_checked(folders, out, monkeypatch):
    with monkeypatch.context() as patch:
        fail_at(patch, "lstat", errno.EIO, lambda path: str(path).endswith("store/train/00001/label/c/0"))
        with pytest.raises(tsds.errors.ConversionError, match=r"Input/output error\. Finished shards are kept in"):
            tsds.convert(folders, out, IN_SHARDS)
    assert tsds.convert(folders, out, IN_SHARDS).resumed == 8


def test_the_last_sync_fails(folders, out, monkeypatch):
    fail_at(monkeypatch, "fsync", errno.EIO, lambda d: out.exists())
    with pytest.raises(tsds.errors.ConversionError, match="it is whole, but its folder could not be synced"):
        tsds.convert(folders, out, IN_SHARDS)
    assert tsds.verify(out) == []
    assert not out.with_name(f"{out.name}.partial").exists()


def test_what_cannot_be_removed_after_the_commit_is_a_note(folders, out, partial, monkeypatch):
    with monkeypatch.context() as patch:
        fail_at(patch, "unlink", errno.EIO, lambda *args, **_: out.exists())
        (note,) = tsds.convert(folders, out, IN_SHARDS).notes
    assert note.startswith(f"{partial}: this work folder could not be removed (Input/output error)")
    assert tsds.verify(out) == []
    with pytest.raises(tsds.errors.StoreExistsError):
        tsds.convert(folders, out, IN_SHARDS)
    assert not partial.exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(folders, out, monkeypatch, number):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    (note,) = tsds.convert(folders, out, IN_SHARDS).notes
    assert "has no locks" in note and tsds.verify(out) == []


# --- what it goes on from ---------------------------------------------------------------------------------------


def test_images_of_another_folder_are_not_mixed_in(tmp_path, out):
    for folder, value in (("a", 10), ("b", 200)):
        (tmp_path / folder).mkdir()
        for i in range(8):
            (tmp_path / folder / f"{i}.png").write_bytes(png_bytes(np.full((6, 5), value, np.uint8)))
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{i}.png,x\n" for i in range(8)))
    a, b = (ConvertOptions(images=tmp_path / name, workers=0, shard_nbytes=60) for name in "ab")
    interrupted(tmp_path / "list.csv", out, 5, a)
    with pytest.raises(tsds.OptionError, match=r"`images` was \S+/a, is now \S+/b\. "):
        tsds.convert(tmp_path / "list.csv", out, b)
    assert tsds.convert(tmp_path / "list.csv", out, a).resumed == 2


OTHER = {
    "format": "folders",
    "layout": "zarr",
    "encoding": "jpeg",
    "quality": 50,
    "subsampling": "4:4:4",
    "check": "headers",
    "size": (3, 3),
    "tiles": (3, 3),
    "overlap": 0.5,
    "fit": "crop",
    "max_side": 3,
    "channels": "depth",
    "color": "rgb",
    "max_pixels": 1000,
    "classes": ("bee", "ant"),
    "split_into": {"a": 0.5, "b": 0.5},
    "seed": 1,
    "split_by": "folder",
    "min_visibility": 0.5,
    "class_map": {"bee": "wasp"},
    "shard_nbytes": 90,
    "workers": 1,
    "on_error": "skip",
    "license": "CC0-1.0",
    "citation": "me",
}


@pytest.mark.filterwarnings("ignore:deprecated")
@pytest.mark.parametrize("name", [name for name in flags(ConvertOptions) if name in OTHER])
def test_any_option_that_changes_is_refused_or_changes_no_byte(folders, out, tmp_path, name):
    """Whatever is changed between two runs: the store is that of a fresh conversion, or there is none."""
    source = folders / "train"
    values = {"workers": 0, "shard_nbytes": 60, "quality": 80}
    values |= {"split_into": {"a": 0.5, "b": 0.5}} if name == "split_by" else {}
    values |= {"tiles": (100, 100)} if name == "overlap" else {}
    values |= {"size": (4, 4)} if name in ("fit", "min_visibility") else {}
    values |= {"fit": "crop"} if name == "min_visibility" else {}
    interrupted(source, out, 5, ConvertOptions(**values))
    changed = ConvertOptions(**values | {name: OTHER[name]})
    if name in ("workers", "on_error", "license", "citation"):
        assert tsds.convert(source, out, changed).resumed == 2
        assert contents(out) == fresh(source, tmp_path, changed)
    else:
        with pytest.raises(tsds.OptionError, match=f"finished shards of another conversion .* `{name}` was"):
            tsds.convert(source, out, changed)


def test_every_option_is_tried():
    others = {
        "images",
        "keypoints",
        "oriented_boxes",
        "key_prefix",
        "label_from",
        "via",
        "boxes",
        "multi_label",
        "strict",
        "objects",
        "margin",
        "min_side",
        "empty_tiles",
    }
    assert set(flags(ConvertOptions)) == {*OTHER, *others}


def test_another_version_does_not_go_on(folders, out, monkeypatch):
    interrupted(folders, out, 5, IN_SHARDS)
    monkeypatch.setattr("tensorstore_ds.conversion.build.__version__", "0.0.9")
    with pytest.raises(tsds.OptionError, match="versions was"):
        tsds.convert(folders, out, IN_SHARDS)


@pytest.mark.parametrize("how", ["written", "replaced"])
def test_a_file_that_changed_is_noticed_whatever_its_times_say(folders, out, tmp_path, how):
    interrupted(folders, out, 9, IN_SHARDS)
    path = folders / "train" / "bee" / "0.png"
    status = path.stat()
    data = png_bytes(np.full((6, 5), 77, np.uint8))
    data += bytes(status.st_size - len(data))
    if how == "replaced":
        (tmp_path / "other.png").write_bytes(data)
        (tmp_path / "other.png").replace(path)
    else:
        path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size and path.stat().st_mtime_ns == status.st_mtime_ns
    summary = tsds.convert(folders, out, IN_SHARDS)
    assert summary.resumed == 3
    reason = "files were added, removed or changed." if how == "replaced" else "their files have the same sizes and mod"
    assert [f"1 finished shard is not used, but converted again: {reason}" in note for note in summary.notes] == [True]
    assert Image.open(path).getpixel((0, 0)) == 77
    assert contents(out) == fresh(folders, tmp_path)


def test_shards_that_a_snapshot_by_hard_links_discards_are_counted(folders, out, tmp_path):
    interrupted(folders, out, 9, IN_SHARDS)
    shutil.copytree(folders, tmp_path / "snapshot", copy_function=os.link)
    notes = []
    summary = tsds.convert(folders, out, IN_SHARDS, progress=lambda event: notes.append(event.note))
    assert summary.resumed == 0
    assert "4 finished shards are not used, but converted again: their files have the same sizes" in summary.notes[0]
    assert "hard links (`cp -al`)" in summary.notes[0] and summary.notes[0] in notes
    assert contents(out) == fresh(folders, tmp_path)


def test_a_clock_that_was_set_back_hides_nothing(folders, out, tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 4e9)
    interrupted(folders, out, 9, IN_SHARDS)
    (folders / "train" / "bee" / "0.png").write_bytes(png_bytes(np.full((6, 5), 77, np.uint8)))
    tsds.convert(folders, out, IN_SHARDS)
    assert contents(out) == fresh(folders, tmp_path)


@pytest.mark.parametrize("found", [2, 4])
@pytest.mark.parametrize("layout", ["memmap", "zarr"])
def test_values_of_another_number_than_was_told(tmp_path, layout, found):
    """They would be cut, or filled up with zeros."""
    table = np.array([3]), {"bytes": np.ones(found, np.uint8)}
    with ShardWriter(tmp_path / "train" / "00000", {"key": KeyField()}) as writer:
        writer.append(BlockResult(0, 1, {"key": table}, Statistics(), (), (), b""))
        with pytest.raises(tsds.errors.ConversionError, match=rf"key/bytes: expected 3 bytes, found {found}\. "):
            writer.finish(layout, 1, "")
