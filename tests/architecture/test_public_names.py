"""What `import chairlift` offers is a promise: changing it is a decision, not an accident."""

from __future__ import annotations

import chairlift
from chairlift.llm import LLM
from chairlift.sampling_params import SamplingParams


def test_public_names_are_pinned() -> None:
    """The root package has these names and resolves them lazily."""
    assert sorted(chairlift.__all__) == ["LLM", "SamplingParams", "__version__"]
    assert chairlift.LLM is LLM
    assert chairlift.SamplingParams is SamplingParams
    assert set(chairlift.__all__) <= set(dir(chairlift))
