"""Registries: built-in names, names that installed packages add, and what happens when packages are wrong."""

import sys

import pytest

from eval.errors import UserError
from eval.plugins import Registry, subclass_of


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return what puts a package with entry points of the group ``shapes`` on the path."""

    def put(name, version, points, code="", said=None):
        root = tmp_path / name
        info = root / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        said = said or f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(said)
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


def test_what_cannot_be_made_is_as_broken_as_what_cannot_be_loaded(install):
    code = "class Ring:\n    name = 'acme.ring'\n    def __init__(self):\n        raise OSError('no disk\\nno more')\n"
    install("acme-b", "1.2", {"acme.ring": "acme_b:Ring"}, code)
    with pytest.raises(UserError) as caught:
        registry(instances=True).get("acme.ring")
    assert str(caught.value) == (
        "shape 'acme.ring' of acme-b 1.2 (acme_b:Ring): cannot be loaded (OSError: no disk); "
        "update acme-b or uninstall it"
    )


def test_a_registry_of_instances_makes_each_once(install):
    install("acme-b", "1.2", {"acme.ring": "acme_b:Ring"}, "class Ring:\n    name = 'acme.ring'\n")
    shapes = registry(instances=True)
    assert shapes.get("square") == {}
    assert shapes.get("square") is shapes.get("square")
    assert shapes.get("acme.ring") is shapes.get("acme.ring")
    assert type(shapes.get("acme.ring")).__name__ == "Ring"


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        ("RING = 'ring'\n", "is no subclass of collections.OrderedDict"),
        ("class RING: pass\n", "is no subclass of collections.OrderedDict"),
        (
            "from collections import OrderedDict\nclass RING(OrderedDict):\n    name = 'arc'\n",
            "its class says name = 'arc'; the entry point must have the same name",
        ),
    ],
)
def test_a_class_must_be_derived_from_its_base_and_have_the_name_of_its_entry_point(install, offered, said):
    install("acme-b", "1.2", {"acme.ring": "acme_b:RING"}, offered)
    with pytest.raises(UserError) as caught:
        registry(problem=subclass_of("collections.OrderedDict"), instances=True).get("acme.ring")
    assert str(caught.value) == f"shape 'acme.ring' of acme-b 1.2 (acme_b:RING): {said}"


def test_a_listing_that_loads_leaves_out_what_is_wrong_with_one_warning_for_each(install, caplog):
    points = {"acme.ring": "acme_b:RING", "acme.arc": "acme_b:ARC", "acme.disc": "acme_b:RING", "dot": "acme_b:RING"}
    install("acme-b", "1.2", points, "RING = 'ring'\n")
    install("acme-a", "3", {"acme.disc": "acme_a:RING"})
    shapes = registry()
    for _ in range(2):
        assert shapes.loadable() == [shapes.get("square"), 1, "ring"]
    assert [record.getMessage() for record in caplog.records] == [
        "shape 'dot' of acme-b 1.2 is not used: the name is built in; the package must choose another",
        "shape 'acme.disc' is claimed by acme-a 3 and acme-b 1.2; uninstall all but one of them",
        "shape 'acme.arc' of acme-b 1.2 (acme_b:ARC): cannot be loaded (AttributeError: module 'acme_b' has no "
        "attribute 'ARC'); update acme-b or uninstall it",
    ]


def test_what_is_installed_later_is_found_when_the_entry_points_are_read_again(install):
    shapes = registry()
    assert shapes.names() == ("square", "dot")
    install("acme-b", "1.2", {"acme.ring": "acme_b:RING"}, "RING = 'ring'\n")
    assert "acme.ring" not in shapes
    shapes.reread()
    assert shapes.get("acme.ring") == "ring"


def test_a_package_that_does_not_say_its_version_is_named_without(install):
    install("acme-b", "1.2", {"acme.ring": "acme_b:RING"}, said="Metadata-Version: 2.1\nName: acme-b\n")
    assert registry().provider("acme.ring") == ("acme-b", "")
    with pytest.raises(UserError, match=r"^shape 'acme.ring' of acme-b \(acme_b:RING\): cannot be loaded"):
        registry().get("acme.ring")


def test_the_place_of_an_unknown_name_is_told():
    with pytest.raises(UserError) as caught:
        registry().get("dto", "--shape")
    assert str(caught.value) == "--shape: unknown shape 'dto'; did you mean 'dot'?"


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
