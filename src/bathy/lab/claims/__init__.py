"""The paper's sentences as predicates over measured numbers, and the verdicts on them.

CLAIMS was written before the runs that judge it. A verdict follows from the numbers alone: `judge(claim, numbers)`.
"""

from bathy.lab.claims.claim import Claim, Verdict, judge
from bathy.lab.claims.table import CLAIMS, claims_of

__all__ = ["CLAIMS", "Claim", "Verdict", "claims_of", "judge"]
