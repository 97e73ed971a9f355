from pathlib import Path

import treeopt
from tests.support.origin import misplaced


def test_another_treeopt_than_the_one_to_be_tested_is_found(tmp_path):
    assert misplaced(Path(treeopt.__file__).parent) is None
    found = misplaced(tmp_path)
    assert found is not None
    assert found.startswith(f"treeopt: expected in {tmp_path}. Got ")
