import matplotlib.pyplot as plt
import pytest

from lbdn.report.look import look


@pytest.fixture(autouse=True)
def reports_look():
    with look():
        yield
        plt.close("all")
