"""Pictures of reports that are drawn but not rendered, which would take a third of the time of a tiny run.

``tests/unit/test_report.py`` looks at rendered ones, and so do the hostile cases, whose commands are whole.
"""

import pytest

RENDER = "eval.report.pictures.render"


def blank(draw):
    """Draw on a figure and return an image of nothing."""
    from matplotlib.figure import Figure

    from eval.report.plots import LIGHT

    draw(Figure(), LIGHT)
    return b'<svg xmlns="http://www.w3.org/2000/svg"/>'


@pytest.fixture(scope="package", autouse=True)
def undrawn():
    """No test of this folder renders a picture of a report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RENDER, blank)
        yield
