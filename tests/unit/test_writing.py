"""Files and folders are whole or not there; what stood there before stays until the new one is complete."""

from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest

from eval.errors import CompressError
from eval.writing import alone, whole_folder, write_beside


def test_a_folder_gets_its_name_when_it_is_whole(tmp_path):
    place = tmp_path / "deep" / "place"
    for content in ("first", "second"):
        with whole_folder(place, "the thing") as beside:
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
        whole_folder(place, "the thing") as beside,
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
    write_beside(tmp_path / "file", b"one")
    write_beside(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_of_several_one_makes_a_folder_and_the_others_find_it(tmp_path):
    place, made = tmp_path / "deep" / "place", []

    def get(number):
        with alone(place):
            if not place.is_dir():
                sleep(0.05)  # the others come meanwhile
                with whole_folder(place, "the thing") as beside:
                    (beside / "file").write_text(str(number))
                made.append(number)
        return (place / "file").read_text()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(get, range(4)))
    assert len(made) == 1
    assert found == [str(made[0])] * 4
    assert [path.name for path in place.parent.iterdir()] == ["place"]


def test_who_fails_lets_the_next_one_in(tmp_path):
    with pytest.raises(ValueError, match="half"), alone(tmp_path / "place"):
        raise ValueError("half")
    with alone(tmp_path / "place"):
        pass
