"""What is said when somebody goes on with a fit that was refused."""

import warnings

from klover.results.fit import Fit


def warn_if_refused(fit: Fit, then: str) -> None:
    """Say loudly that what follows rests on a fit that is not to be trusted; for functions behind a method of it."""
    if not fit.verdict.trusted:
        warnings.warn(f"the fit is refused: {fit.verdict.reason} {then}", UserWarning, stacklevel=4)
