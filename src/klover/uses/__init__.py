"""What a posterior is for: new data, and models checked against data that they have not seen.

``update`` goes on from a fit to other data or another prior; ``left_out`` takes data away, and ``loo`` says how well
what is left predicts it. It imports ``refinement`` and what lies below, and may import everything below the command
line; ``cli`` may import it, and :class:`klover.Fit` has its doors.
"""
