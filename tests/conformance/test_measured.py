"""What `modelzoo models` and docs/models.md show was measured, for every family that there is."""

import json

from harness import has_reference
from measure import FACTS, PAGE, page

from modelzoo.models.auto import FAMILIES


def test_every_family_has_a_measured_figure_within_the_tolerance() -> None:
    families = json.loads(FACTS.read_text())["families"]
    assert set(families) == set(FAMILIES), "run python tests/conformance/measure.py"
    for family in filter(has_reference, FAMILIES):
        assert families[family]["compared"] > 0
        assert 0 <= families[family]["output"] <= 1e-5
        assert 0 <= families[family]["gradient"] <= 1e-5


def test_the_page_is_made_from_the_figures() -> None:
    assert PAGE.read_text() == page(json.loads(FACTS.read_text()))
