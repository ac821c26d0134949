"""`python -m rightsizer` is `gpu-rightsizer`."""

import sys

from rightsizer.cli import main

sys.exit(main())
