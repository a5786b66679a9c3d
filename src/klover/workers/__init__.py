"""Work that is shared out: a function over points or items, on processes, executors, Dask and MPI.

``crew`` is the door, ``scheduler`` cuts the work into chunks and outlives workers that die or hang, ``processes``,
``executors``, ``cluster`` and ``plain`` are what it runs on, ``parcel`` packs a function, and ``task``, ``apart`` and
``work`` run in a worker.
It imports ``base`` alone, and what runs in a worker only NumPy; every room above may import it.
"""
