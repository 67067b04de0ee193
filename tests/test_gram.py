import pytest
import torch

from lbdn import gram
from lbdn.gram import absolute_gram_sums


def plain(vectors, weights):
    return (vectors @ vectors.mT).abs() @ weights


@pytest.fixture(params=[(5, 0), (5, 1000), (3, 0), (3, 1000), (2, 0), (100, 0)], ids="block {0[0]}, kept {0[1]}".format)
def _blocks(request, monkeypatch):
    monkeypatch.setattr(gram, "BLOCK", request.param[0])
    monkeypatch.setattr(gram, "KEPT", request.param[1])


@pytest.mark.usefixtures("_blocks")
def test_blocks_give_the_row_sums_and_gradients_of_the_whole_matrix():
    vectors = torch.randn(11, 4, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(11, dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(11, dtype=torch.float64)
    results = [f(vectors, weights) for f in (absolute_gram_sums, plain)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(r, (vectors, weights), gradient) for r in results))


def test_a_gram_matrix_of_another_power_is_flagged():
    vectors, weights = torch.randn(11, 4), torch.rand(11)
    assert not torch.allclose(absolute_gram_sums(vectors, weights), ((vectors @ vectors.mT) ** 2) @ weights)
