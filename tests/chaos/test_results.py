"""Results are of the code that ran and of what judged it: a weaker judge doesn't go on from them."""

import shutil

import pytest

from chaos.results import harness_digest
from evidence.digests import ROOT


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the checkout, as far as the digest looks at it."""
    root = tmp_path_factory.mktemp("checkout")
    for folder in ("src/onceforall", "tests/chaos", "tests/support", "evidence"):
        shutil.copytree(
            ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "jars")
        )
    shutil.copy(ROOT / "tests" / "conftest.py", root / "tests")
    return root


@pytest.mark.parametrize(
    ("file", "old", "new", "voids"),
    [
        ("alarms.py", "found.append(f", "str(f", True),
        ("arena.py", "alarms(world, self.allowed)", "()", True),
        ("arena.py", "if not self._was_struck():", "if False:", True),
        ("grammar.py", "import dataclass", "import dataclass, field", True),
        ("judging.py", "lost=total.lost", "lost=0", True),
        ("nemeses.py", "weight=4", "weight=0", True),
        ("nemeses_disks.py", "arena.violation(f", "arena.say(f", True),
        ("nemeses_identity.py", "siege.arena.violation(f", "siege.arena.say(f", True),
        ("recipes_more.py", "result.reached = status == -signal.SIGKILL", "result.reached = True", True),
        ("page.py", "yield", "yield  # of the page\n    yield", False),
        ("__main__.py", "default=90", "default=80", False),
        ("test_page.py", "import write_page", "import write_page as written", False),
    ],
)  # fmt: skip
def test_a_weaker_judge_is_another_harness_and_another_page_is_none(
    checkout, file, old, new, voids
):
    path = checkout / "tests" / "chaos" / file
    before, text = harness_digest(checkout), path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    try:
        assert (harness_digest(checkout) != before) == voids
    finally:
        path.write_text(text)
