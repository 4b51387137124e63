"""What can go wrong in this module, named by what happened.

InputInvalid
├── NameInvalid           an owner, pipeline, node group, switch or externalId can't be used
├── PipelineInvalid       a definition can't be read, or breaks a rule
│   ├── PipelineLoops     its children lead back to itself
│   └── StepUnknown       it names a step type or child pipeline that nobody has
NotFound
├── TransactionUnknown
└── PipelineUnknown       no pipeline, or no such version, under that name
Conflict
├── TransactionFinished   it has ended already
└── VersionTaken          that version of the pipeline says something else
"""

from __future__ import annotations

from angarium.runtime.errors import Conflict, InputInvalid, NotFound


class NameInvalid(InputInvalid):
    code = "name_invalid"


class PipelineInvalid(InputInvalid):
    code = "pipeline_invalid"
    http_status = 422


class PipelineLoops(PipelineInvalid):
    code = "pipeline_loops"


class StepUnknown(PipelineInvalid):
    code = "step_unknown"


class TransactionUnknown(NotFound):
    code = "transaction_unknown"


class PipelineUnknown(NotFound):
    code = "pipeline_unknown"


class TransactionFinished(Conflict):
    code = "transaction_finished"


class VersionTaken(Conflict):
    code = "version_taken"
