"""What every room stands on: array shapes, one mathematics for NumPy and JAX, linear algebra, checks of arguments.

Nothing here knows what a target or a mixture is. ``shapes`` annotates arrays and makes records of them, ``arrays``
chooses between NumPy and JAX, ``linalg`` and ``kernels`` hold products and factorisations, ``jaxpr`` compares traced
programs, ``checks`` words the errors for wrong arguments, ``frames`` are the pieces of a file that grows, ``optional``
imports the libraries of extras, ``version`` is a number. Every room may import it; it imports none of them.
"""
