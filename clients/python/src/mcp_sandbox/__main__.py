"""`python -m mcp_sandbox`."""

import sys

from ._cli import main

sys.exit(main())
