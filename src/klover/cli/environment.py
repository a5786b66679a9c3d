"""How the commands set JAX up."""

import os
from pathlib import Path


def set_up_jax(device: str | None = None) -> None:
    """Switch on float64 and the persistent compilation cache, so that a second run starts at once.

    Parameters
    ----------
    device
        ``"cpu"`` or ``"gpu"``; what JAX finds if None.

    Raises
    ------
    ValueError
        If a GPU is asked for, and there is none that JAX can use.
    """
    import jax

    # Processes side by side share one GPU: none of them may take all of its memory at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    elif device == "gpu" and jax.default_backend() != "gpu":
        raise ValueError(
            f"--device gpu needs a GPU, but JAX finds {jax.devices()[0].device_kind!r} only. Install JAX for your GPU "
            "(pip install 'jax[cuda12]'), or leave --device out."
        )
    jax.config.update("jax_enable_x64", True)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "klover" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
