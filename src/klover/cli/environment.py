"""What the commands share: how they set JAX up, and what they say when they cannot go on."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

BAD_INPUT, INTERRUPTED = 2, 130
RESUME = "What was finished is kept; go on with --resume."


def reported(command: str, work: Callable[[], int], *errors: type[Exception], advice: str = RESUME) -> int:
    """Return the exit status of a command's work, and say in words what has ended it: bad input, or the user."""
    try:
        return work()
    except BrokenPipeError:
        raise
    except (ValueError, OSError, ImportError, *errors) as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        print(f"klover {command}: {error} {notes}".rstrip(), file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(f"\nklover {command}: interrupted. {advice}", file=sys.stderr)
        return INTERRUPTED


def set_up_jax(device: str | None = None) -> None:
    """Switch on float64 and the persistent compilation cache, so that a second run starts at once.

    The device is ``"cpu"`` or ``"gpu"``, which is refused where there is none; None takes what JAX finds.
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
