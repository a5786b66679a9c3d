"""The experiments of the paper, each by one command (``klover paper``).

``datasets``, ``models`` (with ``network``), ``problems`` and ``simulations`` are what is inferred, ``gibbs`` the exact
judge. ``methods`` (with ``chains``, ``tuning``) and ``samplers`` (with ``adaptive``) infer it. ``experiments`` runs all
into the file of ``measurements``; ``tables``, ``failure_modes``, ``figures`` (with ``figure_data``) and ``report`` show
it beside what was ``published``. It may import every room but ``cli``, and only ``cli`` imports it.
"""
