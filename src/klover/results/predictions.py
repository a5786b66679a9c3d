"""New observations for new inputs, labelled as ArviZ has them."""

from typing import Any

import numpy as np

from klover.base import optional
from klover.base.checks import as_key
from klover.base.shapes import KeyLike
from klover.importance import resampling
from klover.results.datatree import attributes_of, dataset, new_observations
from klover.results.doubt import warn_if_refused
from klover.results.fit import Fit


def predict(fit: Fit, args: tuple, kwargs: dict[str, Any], num_draws: int, key: KeyLike) -> Any:
    """Predict for new inputs; the documentation is that of :meth:`klover.Fit.predict`."""
    model_info, draws = fit.target.model_info, fit.draws
    if model_info is None or model_info.renew is None:
        raise ValueError(
            "fit.predict needs a model that can be run with new inputs: one of NumPyro with observations and without "
            "discrete latent variables, of PyMC, or Stan code; this fit has none, or was loaded without its target."
        )
    key, new = as_key(key), model_info.renew(*args, **kwargs)
    warn_if_refused(fit, "Its predictions may be as wrong.")
    index = np.asarray(resampling.resample(key, np.asarray(draws.log_weight), num_draws))
    chosen = fit.target.positions(np.asarray(draws.x)[index])
    groups = {
        "predictions": dataset(new_observations(new.predict, key, chosen), new),
        "predictions_constant_data": dataset(new.observed, new, ()),
    }
    tree = optional.xarray().DataTree.from_dict(groups)
    for attributes in (tree.attrs, tree["predictions"].attrs):
        attributes.update(attributes_of(draws))
    return tree
