"""``python -m vane_magic`` is the command ``vane-research``."""

from vane_magic.cli import main

raise SystemExit(main())
