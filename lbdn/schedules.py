"""Learning-rate schedules, as functions of the fraction of training done."""


def piecewise_triangular(progress: float, maximum: float) -> float:
    """Return the learning rate: 0 to the maximum over 2/5 of training, to a twentieth of it at 4/5, to 0 at the end.

    Source: Coleman et al. (2017), as the paper and Trockman and Kolter (2021) use it.

    >>> [round(piecewise_triangular(p, 0.01), 5) for p in (0, 0.2, 0.4, 0.8, 0.9, 1)]
    [0.0, 0.005, 0.01, 0.0005, 0.00025, 0.0]
    """
    if progress < 0.4:
        return maximum * progress / 0.4
    if progress < 0.8:
        return maximum * (1 - 0.95 * (progress - 0.4) / 0.4)
    return maximum * 0.05 * max(0.0, 1 - progress) / 0.2
