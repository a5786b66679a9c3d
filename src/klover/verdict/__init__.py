"""Whether an answer is trusted, and why.

``status`` is the table of every way to end, in words; ``checks`` is the ordered list of what can speak against an
answer; ``judge`` runs the checks, for :func:`klover.boost` and for :func:`klover.refine` alike. It imports ``search``
and what lies below; ``results`` and above may import it.
"""
