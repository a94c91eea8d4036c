import subprocess
import sys


def test_core_loads_nothing_but_the_standard_library():
    """Importing the scheduler pulls in no numpy, no msgspec and nothing of the layers above."""
    code = (
        "import sys; before = set(sys.modules); import chairlift.core.scheduler, chairlift.core.ports; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded - set(sys.stdlib_module_names) == {"chairlift"}
