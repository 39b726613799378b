"""The folder of a run, when it is gone on with."""

from compress.engine.run_folder import RESULTS, take


def test_what_a_killed_run_was_writing_is_cleared(tmp_path):
    places = [tmp_path, tmp_path / RESULTS / "onnx-int8", tmp_path / RESULTS / "teacher"]
    for place in places:
        (place / ".result.json.0123abcd.writing").mkdir(parents=True)
        (place / "kept.json").write_text("{}")
    take(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["kept.json"] * 3
    assert not list(tmp_path.rglob("*.writing"))
