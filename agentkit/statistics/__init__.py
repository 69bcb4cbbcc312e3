"""Layer: pure logic. Statistics of paired agent evaluations; numpy and scipy, rng passed in.

``pair_records`` makes the paired table, ``compare`` says all there is to say about it;
``reconstruct_published`` rebuilds the write-up's interval from its printed digits.
"""

from agentkit.statistics.bootstrap import ClusterBootstrap, Draws, Interval, bca_levels
from agentkit.statistics.comparison import Accuracy, Comparison, Quantity, compare
from agentkit.statistics.design import (
    Equivalence,
    equivalence,
    mcnemar_power,
    minimum_detectable_effect,
    paired_half_width,
    unpaired_half_width,
)
from agentkit.statistics.pairing import (
    Arm,
    PairingError,
    PairTable,
    arms_of,
    cells_of,
    pair_records,
)
from agentkit.statistics.proportions import (
    TwoByTwo,
    holm,
    mcnemar,
    mean_pass_at_k,
    newcombe_paired,
    pass_at_k,
    sign_flip,
    wilson,
)
from agentkit.statistics.published import (
    STATEMENT,
    Published,
    Reconstruction,
    reconstruct_published,
)

__all__ = [
    "STATEMENT",
    "Accuracy",
    "Arm",
    "ClusterBootstrap",
    "Comparison",
    "Draws",
    "Equivalence",
    "Interval",
    "PairTable",
    "PairingError",
    "Published",
    "Quantity",
    "Reconstruction",
    "TwoByTwo",
    "arms_of",
    "bca_levels",
    "cells_of",
    "compare",
    "equivalence",
    "holm",
    "mcnemar",
    "mcnemar_power",
    "mean_pass_at_k",
    "minimum_detectable_effect",
    "newcombe_paired",
    "pair_records",
    "paired_half_width",
    "pass_at_k",
    "reconstruct_published",
    "sign_flip",
    "unpaired_half_width",
    "wilson",
]
