"""Statistics of bench/tenant_timing.py: is one sample sooner than another, and if that is not found, are they the same?

All of it is exact or in closed form, so that the same samples always give the same verdict.
"""
import bisect
import math
import statistics

Z90 = statistics.NormalDist().inv_cdf(0.95)  # two one-sided tests at 5% are a 90% interval (Schuirmann 1987)


def smirnov(sooner, later):
    """D+ = sup(F_sooner - F_later), and the chance of so much or more when the labels were dealt at random.

    One-sided two-sample Kolmogorov-Smirnov test. For two samples of n the chance is exactly C(2n, n-k) / C(2n, n) with
    D+ = k/n (Gnedenko and Korolyuk 1951). Labels that were shuffled make it right even where the server's speed drifts.
    """
    n = len(sooner)
    if n == 0 or n != len(later):
        raise ValueError("two samples of the same size")
    sooner, later = sorted(sooner), sorted(later)
    steps = max(bisect.bisect_right(sooner, value) - bisect.bisect_right(later, value) for value in sooner)
    steps = max(steps, 0)
    return steps / n, math.comb(2 * n, n - steps) / math.comb(2 * n, n)


def shift(sooner, later):
    """How much later `later` lies: Hodges-Lehmann's median of all differences, with its 90% interval.

    The interval is that of the rank-sum test (Moses; Hollander, Wolfe and Chicken 2014, section 4.3): the k-th smallest and
    largest difference, k = nm/2 - z sqrt(nm(n+m+1)/12). A few wild times do not move it.
    """
    n, m = len(sooner), len(later)
    differences = sorted(y - x for x in sooner for y in later)
    rank = max(0, math.floor(n * m / 2 - Z90 * math.sqrt(n * m * (n + m + 1) / 12)) - 1)
    return statistics.median(differences), differences[rank], differences[-1 - rank]


def wins_at_least(wins, trials):
    """The exact chance of so many wins or more of a fair coin."""
    return sum(math.comb(trials, k) for k in range(wins, trials + 1)) / (1 << trials)


def advantage(wins_ahead, ahead, wins_behind, behind):
    """How much oftener than half a hit is first, with its 90% interval.

    `wins_ahead` of `ahead` pairs were won by a hit that was written first, `wins_behind` of `behind` by one that was written
    second. Being written first decides most pairs, so the halves are taken apart: what is left of the chance in each is
    small, and fewer pairs are needed. p - 1/2 = (P(hit wins, ahead) - P(miss wins, ahead)) / 2, a difference of two
    proportions; the interval adds a win and a loss to each (Agresti and Caffo 2000).
    """
    estimate = (wins_ahead / ahead + wins_behind / behind - 1) / 2
    hit, miss = (wins_ahead + 1) / (ahead + 2), (behind - wins_behind + 1) / (behind + 2)
    half = Z90 * math.sqrt(hit * (1 - hit) / (ahead + 2) + miss * (1 - miss) / (behind + 2)) / 2
    middle = (hit - miss) / 2
    return estimate, middle - half, middle + half


def judge_same(interval, margin):
    """`same` when all of the interval lies within the margin, `differs` when none of it does, else `undecided`."""
    low, high = interval
    if -margin < low and high < margin:
        return "same"
    return "differs" if low >= margin or high <= -margin else "undecided"
