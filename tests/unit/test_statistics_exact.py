"""Exact tests and closed-form intervals against statsmodels and by-hand enumeration."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import norm
from statsmodels.stats.contingency_tables import mcnemar as sm_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from agentkit.statistics import (
    STATEMENT,
    TwoByTwo,
    equivalence,
    holm,
    mcnemar,
    mcnemar_power,
    mean_pass_at_k,
    minimum_detectable_effect,
    newcombe_paired,
    paired_half_width,
    pass_at_k,
    reconstruct_published,
    sign_flip,
    unpaired_half_width,
    wilson,
)


@pytest.mark.parametrize(("gained", "lost"), [(19, 5), (5, 19), (0, 0), (1, 0), (7, 7), (13, 2)])
def test_mcnemar_exact_agrees_with_statsmodels_and_enumeration(gained: int, lost: int) -> None:
    exact, mid = mcnemar(gained, lost)
    theirs = sm_mcnemar([[0, gained], [lost, 0]], exact=True).pvalue
    assert exact == pytest.approx(min(1.0, float(theirs)), abs=1e-12)
    n = gained + lost
    if 0 < n <= 15:
        gap = abs(gained - lost)
        signs = [abs(sum(s)) for s in product((-1, 1), repeat=n)]
        assert exact == pytest.approx(np.mean([s >= gap for s in signs]))
        # Half of the outcomes exactly as extreme as the observed one leave the mid-p.
        assert mid == pytest.approx(exact - np.mean([s == gap for s in signs]) / 2)


def test_mcnemar_is_symmetric_and_mid_p_is_smaller() -> None:
    for gained, lost in product(range(12), repeat=2):
        exact, mid = mcnemar(gained, lost)
        assert (exact, mid) == mcnemar(lost, gained)
        assert 0 < mid <= exact <= 1


def test_sign_flip_meets_mcnemar_when_each_cluster_is_one_pair() -> None:
    gaps = np.array([1.0] * 14 + [-1.0] * 4 + [0.0] * 100)
    p = sign_flip(gaps, np.random.default_rng(0), 40_000)
    exact = mcnemar(14, 4)[0]
    assert p == pytest.approx(exact, abs=4 * np.sqrt(exact / 40_000))


def test_sign_flip_of_whole_clusters_is_less_sure() -> None:
    apart = sign_flip(np.ones(12), np.random.default_rng(0), 20_000)
    together = sign_flip(np.full(3, 4.0), np.random.default_rng(0), 20_000)
    assert together == pytest.approx(2 / 8, abs=0.02)
    assert apart < 0.01


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (103, 149)])
def test_wilson_agrees_with_statsmodels(k: int, n: int) -> None:
    theirs = proportion_confint(k, n, method="wilson")
    assert wilson(k, n) == pytest.approx(theirs, abs=1e-12)


def test_wilson_refuses_what_is_no_proportion() -> None:
    with pytest.raises(ValueError, match="3 of 2"):
        wilson(3, 2)


def test_newcombe_published_case() -> None:
    # Airway hyper-responsiveness, Fagerland et al. 2014 table IV: 1, 1, 7, 12 -> -0.507 to -0.026.
    low, high = newcombe_paired(TwoByTwo(both=1, gained=1, lost=7, neither=12))
    assert (round(low, 3), round(high, 3)) == (-0.507, -0.026)


def test_newcombe_mirrors_and_holds_the_estimate() -> None:
    table = TwoByTwo(98, 19, 5, 27)
    low, high = newcombe_paired(table)
    assert low < table.difference < high
    mirrored = newcombe_paired(TwoByTwo(98, 5, 19, 27))
    assert mirrored == pytest.approx((-high, -low))
    # Perfect agreement of the arms: with empty margins phi is 0 and the limits stay finite.
    assert all(np.isfinite(newcombe_paired(TwoByTwo(10, 0, 0, 0))))


def test_holm_agrees_with_statsmodels_and_keeps_names() -> None:
    p = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005, "e": 0.9}
    theirs = multipletests(list(p.values()), method="holm")[1]
    assert list(holm(p)) == list(p)
    assert list(holm(p).values()) == pytest.approx(theirs)


def test_pass_at_k_is_the_share_of_subsets_with_a_success() -> None:
    for n, correct, k in [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 4), (8, 3, 8)]:
        outcomes = [True] * correct + [False] * (n - correct)
        subsets = [any(s) for s in combinations(outcomes, k)]
        assert pass_at_k(n, correct, k) == pytest.approx(np.mean(subsets))
    with pytest.raises(ValueError, match="pass@3"):
        pass_at_k(2, 1, 3)
    assert mean_pass_at_k([[True, False], [False, False], [True]], 2) == pytest.approx(0.5)
    assert mean_pass_at_k([[True]], 2) is None


def test_design_gives_the_known_table_at_150_tasks() -> None:
    discordance = (0.10, 0.15, 0.20, 0.30)
    half = [round(100 * paired_half_width(150, d), 1) for d in discordance]
    effect = [100 * (minimum_detectable_effect(150, d) or 0) for d in discordance]
    assert half == [5.1, 6.2, 7.2, 8.8]
    assert effect == pytest.approx([7.2, 8.8, 10.1, 12.4], abs=0.06)
    assert 100 * unpaired_half_width(150, 0.5, 0.5) == pytest.approx(11.3, abs=0.05)
    assert minimum_detectable_effect(10, 0.05) is None


def test_power_by_enumeration_agrees_with_simulation_and_the_approximation() -> None:
    gain, loss, n = 0.16, 0.05, 150
    rng = np.random.default_rng(3)
    draws = rng.multinomial(n, [gain, loss, 1 - gain - loss], size=4000)
    found = np.mean([mcnemar(int(g), int(lo))[0] <= 0.05 for g, lo, _ in draws])
    power = mcnemar_power(n, gain, loss)
    assert power == pytest.approx(found, abs=0.03)
    # The exact test is conservative: at the normal MDE its power is below, not far below, 80%.
    effect = minimum_detectable_effect(n, 0.2)
    assert effect is not None
    assert 0.70 < mcnemar_power(n, (0.2 + effect) / 2, (0.2 - effect) / 2) < 0.82
    assert mcnemar_power(n, 0.1, 0.1) < 0.05


def test_equivalence_needs_the_whole_interval_inside_the_margin() -> None:
    values = norm.ppf((np.arange(10_000) + 0.5) / 10_000) * 0.02
    assert equivalence(values, 0.05).equivalent
    wide = equivalence(values * 3, 0.05)
    assert not wide.equivalent
    assert wide.p_value > 0.05 > equivalence(values, 0.05).p_value
    better = equivalence(values + 0.2, 0.05)
    assert better.not_worse
    assert not better.equivalent
    with pytest.raises(ValueError, match="margin"):
        equivalence(values, 0.0)


def test_reconstruction_gives_every_printed_digit() -> None:
    found = reconstruct_published()
    for r in found:
        assert round(100 * r.base / r.n) == 69
        assert round(100 * r.trained / r.n) == 79
        assert round(100 * (r.trained - r.base) / r.n, 1) == 9.4
        outcomes = np.array([1] * r.gained + [-1] * r.lost + [0] * (r.n - r.gained - r.lost))
        assert round(196 * outcomes.std() / np.sqrt(r.n), 1) == 6.3
        assert r.table.base == r.base
        assert r.table.other == r.trained
    nearest = found[0]
    assert (nearest.n, nearest.base, nearest.trained) == (149, 103, 117)
    assert (nearest.gained, nearest.lost) == (19, 5)
    assert nearest.mcnemar_p == pytest.approx(0.0066, abs=5e-5)
    assert all(r.n < 128 for r in found[1:])
    assert "reconstruction" in STATEMENT
