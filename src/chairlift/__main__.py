"""`python -m chairlift` is the `chairlift` command."""

import sys

from chairlift.cli.main import main

sys.exit(main())
