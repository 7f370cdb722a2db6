"""Makes the operator that executes a node of a topology; running operators belongs to ``processor``."""

from weir.pipelines.tasks.operator_factory.one_input import global_join_of, operator_of
from weir.pipelines.tasks.operator_factory.several_inputs import merge_of, several_inputs_of

__all__ = ["global_join_of", "merge_of", "operator_of", "several_inputs_of"]
