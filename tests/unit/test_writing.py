"""Files and folders are whole or not there; what stood there before stays until the new one is complete."""

import errno
import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import sleep

import pytest

from eval.errors import CompressError, UserError
from eval.files import writing
from eval.files.writing import atomic_file, atomic_folder, atomic_write, clear_leftovers, exclusive


def test_a_folder_gets_its_name_when_it_is_whole(tmp_path):
    place = tmp_path / "deep" / "place"
    for content in ("first", "second"):
        with atomic_folder(place, "the thing") as beside:
            (beside / "file").write_text(content)
            assert not (place / "file").exists() or (place / "file").read_text() == "first"
        assert (place / "file").read_text() == content
    assert [path.name for path in place.parent.iterdir()] == ["place"]


@pytest.mark.parametrize("error", [OSError("No space left on device"), ValueError("something else")])
def test_after_a_failure_the_old_folder_stands_and_nothing_else(tmp_path, error):
    place = tmp_path / "place"
    place.mkdir()
    (place / "file").write_text("old")
    with (  # noqa: PT012
        pytest.raises(CompressError if isinstance(error, OSError) else ValueError) as caught,
        atomic_folder(place, "the thing") as beside,
    ):
        (beside / "file").write_text("half")
        raise error
    if isinstance(error, OSError):
        assert str(caught.value) == (
            f"{place}: the thing could not be written (No space left on device); what stood there is unchanged"
        )
    assert (place / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_a_file_is_replaced_at_once(tmp_path):
    atomic_write(tmp_path / "file", b"one")
    atomic_write(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_of_several_one_makes_a_folder_and_the_others_find_it(tmp_path):
    place, made = tmp_path / "deep" / "place", []

    def get(number):
        with exclusive(place):
            if not place.is_dir():
                sleep(0.05)  # the others come meanwhile
                with atomic_folder(place, "the thing") as beside:
                    (beside / "file").write_text(str(number))
                made.append(number)
        return (place / "file").read_text()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(get, range(4)))
    assert len(made) == 1
    assert found == [str(made[0])] * 4
    assert [path.name for path in place.parent.iterdir()] == ["place"]


def test_who_fails_lets_the_next_one_in(tmp_path):
    with pytest.raises(ValueError, match="half"), exclusive(tmp_path / "place"):
        raise ValueError("half")
    with exclusive(tmp_path / "place"):
        pass


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("mask", "file", "folder"), [(0o022, 0o644, 0o755), (0o027, 0o640, 0o750)])
def test_files_get_the_modes_of_the_umask_whatever_library_wrote_them(tmp_path, mask, file, folder):
    before = os.umask(mask)
    try:
        with atomic_folder(tmp_path / "place", "the thing") as beside:
            (beside / "inner").mkdir()
            for name in ("weights", "inner/weights"):
                (beside / name).touch(0o600)
            (beside / "program").touch(0o755)
        with atomic_file(tmp_path / "one") as beside:
            beside.touch(0o600)
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in ("place/weights", "place/inner/weights", "one")] == [file] * 3
    assert mode(tmp_path / "place/program") & 0o100
    assert mode(tmp_path / "place") == folder


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path):
    (tmp_path / "file").touch(0o600)
    atomic_write(tmp_path / "file", b"new")
    assert mode(tmp_path / "file") == 0o600


def test_links_stay_links(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "old").touch()
    (tmp_path / "link").symlink_to("target")
    with atomic_folder(tmp_path / "link", "the thing") as beside:
        (beside / "new").touch()
    (tmp_path / "text").write_text("old")
    (tmp_path / "name").symlink_to("text")
    atomic_write(tmp_path / "name", b"new")
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["new"]
    assert (tmp_path / "name").is_symlink()
    assert (tmp_path / "text").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "name", "target", "text"]


def test_what_is_no_regular_file_is_written_to(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()
    atomic_write(fifo, b"through")
    reader.join(10)
    assert read == [b"through"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    stdout = "Path('/proc/self/fd/1')"  # not /dev/stdout, which an error made as root would replace
    code = f"from pathlib import Path; from eval.files.writing import atomic_write; atomic_write({stdout}, b'said')"
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", code], check=True, stdout=out)
    assert (tmp_path / "out").read_bytes() == b"said"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "out"]


KILLED = """
import os, signal, sys
from pathlib import Path
from eval.files.writing import atomic_file, atomic_folder
place = Path(sys.argv[1])
with atomic_folder(place / "folder", "the thing") as one, atomic_file(place / "file") as two:
    (one / "half").touch()
    two.touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_that_writes_there(tmp_path):
    for name in ("folder", "file"):
        place = tmp_path / name
        place.mkdir() if name == "folder" else place.write_text("old")
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert len(list(tmp_path.glob(".*.writing"))) == 2
    with atomic_folder(tmp_path / "folder", "the thing"):
        atomic_write(tmp_path / "file", b"new")
        assert len(list(tmp_path.glob(".*.writing"))) == 1, "its own, which is held"
        with atomic_folder(tmp_path / "folder", "the thing"):
            assert len(list(tmp_path.glob(".*.writing"))) == 2, "nobody takes what another is writing"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


KILLED_BETWEEN = """
import os, signal, sys
from pathlib import Path
from eval.files import writing
writing._exchange = lambda *_: False
replace, left = os.replace, int(sys.argv[2])
def counted(*paths):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    replace(*paths)
os.replace = counted
writing.shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
with writing.atomic_folder(Path(sys.argv[1]) / "folder", "the thing") as beside:
    (beside / "new").touch()
"""


@pytest.mark.parametrize(("renames", "kept"), [(0, "old"), (1, "old"), (2, "new")])
def test_a_kill_while_names_are_changed_loses_no_folder(tmp_path, renames, kept):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()
    (tmp_path / ".folder.mine.old").touch()  # not one of ours
    subprocess.run([sys.executable, "-c", KILLED_BETWEEN, str(tmp_path), str(renames)], check=False)
    assert (tmp_path / "folder").exists() == (renames != 1)
    clear_leftovers(tmp_path)
    assert [path.name for path in (tmp_path / "folder").iterdir()] == [kept]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".folder.mine.old", "folder"]


def test_what_another_is_writing_is_no_leftover(tmp_path):
    with atomic_folder(tmp_path / "place", "the thing") as beside:
        (tmp_path / ".other.0123abcd.writing").mkdir()
        clear_leftovers(tmp_path)
        assert list(tmp_path.iterdir()) == [beside]


def test_there_is_no_moment_without_a_folder(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    stopped, missed = threading.Event(), []

    def look():
        while not stopped.is_set():
            if not place.exists():
                missed.append(1)

    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in range(30):
        with atomic_folder(place, "the thing") as beside:
            (beside / "file").touch()
    stopped.set()
    watcher.join()
    assert not missed


def test_where_names_cannot_be_exchanged_the_old_folder_makes_room(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_exchange", lambda *_: False)
    test_a_folder_gets_its_name_when_it_is_whole(tmp_path)


MADE_ROOM = """
import os, signal, sys
from pathlib import Path
from eval.files import writing
writing._exchange = lambda *_: False
replace = os.replace
def killed(source, target):
    if Path(target).name == "place":
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = killed
with writing.atomic_folder(Path(sys.argv[1]) / "place", "the thing") as beside:
    (beside / "file").write_text("new")
"""


@pytest.mark.parametrize("fails", [True, False])
def test_where_names_cannot_be_exchanged_a_kill_loses_nothing_either(tmp_path, fails):
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "file").write_text("old")
    subprocess.run([sys.executable, "-c", MADE_ROOM, str(tmp_path)], check=False)
    assert {path.suffix for path in tmp_path.iterdir()} == {".old", ".writing"}
    with suppress(ZeroDivisionError), atomic_folder(tmp_path / "place", "the thing") as beside:
        assert (tmp_path / "place" / "file").read_text() == "old"
        (beside / "file").write_text("newer")
        assert 1 / (not fails)
    assert [path.name for path in tmp_path.iterdir()] == ["place"]
    assert (tmp_path / "place" / "file").read_text() == ("old" if fails else "newer")


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(writing, "_sync", lambda path: events.append(("sync", path.name)))
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (events.append(("name", paths[1].name)), replace(*paths)))
    with atomic_folder(tmp_path / "place", "the thing") as beside:
        (beside / "file").touch()
    atomic_write(tmp_path / "one", b"")
    kinds = [kind if kind == "name" else f"sync {name}" for kind, name in events if not name.endswith(".writing")]
    assert kinds == ["sync file", "name", f"sync {tmp_path.name}", "sync one", "name", f"sync {tmp_path.name}"]


def test_what_a_library_says_of_a_full_disk_is_the_same_error(tmp_path):
    with (
        pytest.raises(CompressError, match=r"the disk is full \(.*place\); free some space"),
        atomic_folder(tmp_path / "place", "the thing"),
    ):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(OSError, match="No space left on device") as caught, atomic_file(tmp_path / "file"):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert caught.value.errno == 28
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_and_an_exhausted_quota_are_told_alike(tmp_path, number):
    with pytest.raises(CompressError) as caught, atomic_folder(tmp_path / "place", "the thing"):
        raise OSError(number, os.strerror(number), "hidden/file")
    assert str(caught.value) == (
        f"the disk is full ({tmp_path / 'place'}); free some space, then go on with --resume or the same command"
    )


def test_who_waits_says_so(tmp_path, caplog):
    caplog.set_level("INFO", logger="eval.files.writing")
    with ThreadPoolExecutor(1) as pool:
        with exclusive(tmp_path / "place"):
            waiting = pool.submit(lambda: exclusive(tmp_path / "place").__enter__())
            sleep(0.2)
            assert not waiting.done()
        waiting.result(10)
    assert "place: another process is making it; waiting" in caplog.text


def test_a_folder_is_no_place_for_a_file(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError) as error:
        atomic_write(tmp_path / "folder", b"content")
    assert error.value.problems == (f"{tmp_path / 'folder'}: is a folder; name a file",)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
