"""``python -m klover``: the command line."""

from klover.cli import main

raise SystemExit(main())
