"""A checker of certificates in NumPy alone: ``python -m lbdn.verify RUN`` trusts nothing of the rest of the library."""

from lbdn.verify.lmi import is_positive_semidefinite, proves_lipschitz_bound

__all__ = ["is_positive_semidefinite", "proves_lipschitz_bound"]
