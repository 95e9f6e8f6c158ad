"""Appendix A.1.1: the term of order sigma^4, by which the reach of the second order is judged."""

from __future__ import annotations

from torch import Tensor, stack

from peppermill.curvature.estimates import standard_error


def quartic_term(fourth: Tensor, second: Tensor, exact: bool) -> tuple[float, float]:
    """Q of L(sigma) = L(0) + sigma^2/2 R + sigma^4 Q + ..., and its standard error, from derivatives [n, N].

    E L_i(theta* + sigma v) / L_i = 1 + sigma^2/2 E[second] + sigma^4/24 E[fourth] + ..., for the third moment vanishes,
    and its logarithm has Q = sum_i (E[fourth] / 24 - E[second]^2 / 8).
    """
    fourths = fourth.sum(dim=1) / 24
    if exact:
        return float(fourths.mean() - second.mean(dim=0).square().sum() / 8), standard_error(fourths)
    return _jackknife(fourths, second)


def _jackknife(fourths: Tensor, second: Tensor) -> tuple[float, float]:
    """Q, and its error from the values that it takes when one probe is left out."""
    count = len(second)
    totals, squares = second.sum(dim=0), second.square().sum(dim=0)

    def squared_mean(total: Tensor, square: Tensor, n: int) -> Tensor:
        """sum_i E[second]^2: products of different probes only, because a probe's own square adds its noise."""
        return (total.square() - square).sum() / (n * (n - 1))

    whole = fourths.mean() - squared_mean(totals, squares, count) / 8
    left_out = stack(
        [
            (fourths.sum() - fourths[j]) / (count - 1)
            - squared_mean(totals - second[j], squares - second[j].square(), count - 1) / 8
            for j in range(count)
        ]
    )
    return float(whole), standard_error(left_out) * (count - 1)
