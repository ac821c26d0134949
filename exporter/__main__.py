"""`python -m exporter` is `gpu-exporter`."""

import sys

from exporter.cli import main

sys.exit(main())
