"""Guards: what forbids a rung although it would help. The table is in `table`, the checks beside it by meaning."""

from recover.core.guards.case import Case, Context, Guard
from recover.core.guards.table import GUARDS, refusal

__all__ = ["GUARDS", "Case", "Context", "Guard", "refusal"]
