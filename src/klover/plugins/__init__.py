"""klover inside other programs: what makes it one of their samplers, one module for each program.

``bilby``, ``cobaya`` and ``cosmosis`` know nothing of each other; ``answer`` is what they share. The programs find them
by the package's metadata or by name, so nothing here is imported by the rest of klover; it may import every room but
``cli`` and ``paper``.
"""
