import sys
from pathlib import Path

# What the tests of this room share lies beside them; pytest imports test files alone.
sys.path.insert(0, str(Path(__file__).parent))
