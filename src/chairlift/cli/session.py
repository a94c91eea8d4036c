"""Opening a model for the commands that run in the terminal's own process."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from chairlift.cli.flags import engine_config
from chairlift.cli.models import resolve_model

if TYPE_CHECKING:
    from chairlift.llm import LLM


def open_llm(args: argparse.Namespace) -> LLM:
    """Load the model that the flags name; notices (clamped context, slow backend) are logged, hence on stderr."""
    from chairlift.llm import LLM  # numpy and the kernels load here, not for --help

    return LLM.from_config(resolve_model(engine_config(args, args.model)))
