"""The file that spark-submit is given: the job's command line, with the packages beside this file on the path."""

import sys

from ballast_rebalance.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
