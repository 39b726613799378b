"""Registries: built-in names, names that installed packages add, and what happens when packages are wrong."""

import sys

import pytest

from eval.errors import UserError
from eval.plugins import Registry


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return what puts a package with entry points of the group ``shapes`` on the path."""

    def put(name, version, points, code=""):
        root = tmp_path / name
        info = root / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = "".join(f"{key} = {value}\n" for key, value in points.items())
        (info / "entry_points.txt").write_text(f"[shapes]\n{lines}")
        (root / f"{name.replace('-', '_')}.py").write_text(code)
        monkeypatch.syspath_prepend(root)

    yield put
    for module in [name for name in sys.modules if name.startswith("acme")]:
        del sys.modules[module]


def registry(**more):
    return Registry("shape", "shapes", {"square": "collections:OrderedDict", "dot": 1}, **more)


def test_built_in_names_come_first_and_load_on_use():
    shapes = registry()
    assert shapes.names() == ("square", "dot")
    assert shapes.get("square").__name__ == "OrderedDict"
    assert shapes.get("dot") == 1
    assert (shapes.provider("square"), shapes.place("square")) == (None, "collections:OrderedDict")
    assert "dot" in shapes
    assert "circle" not in shapes


def test_a_package_adds_names_and_its_code_runs_when_one_is_used(install):
    install("acme-b", "1.2", {"acme.ring": "acme_b:RING", "acme.arc": "acme_b:ARC"}, "RING = 'ring'\nARC = 'arc'\n")
    shapes = registry()
    assert shapes.names() == ("square", "dot", "acme.arc", "acme.ring")
    assert "acme.ring" in shapes
    assert "acme_b" not in sys.modules
    assert shapes.get("acme.ring") == "ring"
    assert shapes.provider("acme.ring") == ("acme-b", "1.2")
    assert shapes.place("acme.ring") == "acme_b:RING"
    assert shapes.clashes() == []


def test_an_unknown_name_names_the_nearest_of_a_package(install):
    install("acme-b", "1.2", {"acme.ring": "acme_b:RING"})
    with pytest.raises(UserError) as caught:
        registry().get("acme.rong")
    assert str(caught.value) == "unknown shape 'acme.rong'; did you mean 'acme.ring'?"


def test_what_cannot_be_loaded_names_its_package_and_leaves_the_rest_alone(install):
    install("acme-b", "1.2", {"acme.ring": "acme_b:RING"}, "raise RuntimeError('no compiler')\n")
    shapes = registry()
    with pytest.raises(UserError) as caught:
        shapes.get("acme.ring")
    assert str(caught.value) == (
        "shape 'acme.ring' of acme-b 1.2 (acme_b:RING): cannot be loaded (RuntimeError: no compiler); "
        "update acme-b or uninstall it"
    )
    assert shapes.get("dot") == 1


def test_what_is_of_another_sort_names_its_package(install):
    install("acme-b", "1.2", {"acme.ring": "acme_b:RING"}, "RING = 'ring'\n")
    shapes = registry(problem=lambda name, thing: "" if thing == name else f"is {thing!r}")
    with pytest.raises(UserError) as caught:
        shapes.get("acme.ring")
    assert str(caught.value) == "shape 'acme.ring' of acme-b 1.2 (acme_b:RING): is 'ring'"


def test_a_name_that_two_packages_claim_names_both(install):
    install("acme-b", "1.2", {"acme.ring": "acme_b:RING", "b": "acme_b:RING"}, "RING = 'ring'\n")
    install("acme-a", "3", {"acme.ring": "acme_a:RING"})
    shapes = registry()
    sentence = "shape 'acme.ring' is claimed by acme-a 3 and acme-b 1.2; uninstall all but one of them"
    with pytest.raises(UserError) as caught:
        shapes.get("acme.ring")
    assert str(caught.value) == sentence
    assert shapes.clashes() == [sentence]
    assert shapes.get("b") == "ring"


def test_a_built_in_name_stays_built_in(install):
    install("acme-b", "1.2", {"square": "acme_b:RING", "dot": "acme_b:RING"}, "RING = 'ring'\n")
    shapes = registry()
    assert shapes.names() == ("square", "dot")
    assert (shapes.get("square").__name__, shapes.get("dot")) == ("OrderedDict", 1)
    assert shapes.provider("dot") is None
    assert shapes.clashes() == [
        f"shape {name!r} of acme-b 1.2 is not used: the name is built in; the package must choose another"
        for name in ("dot", "square")
    ]


def test_what_makes_itself_known_is_built_in():
    shapes = registry()
    shapes.add("line", 7)
    assert shapes.names() == ("square", "dot", "line")
    assert shapes.get("line") == 7
