"""The errors of this module, named by what happened.

InputInvalid
├── NameInvalid           a name (owner, pipeline, node group, switch) or an id is not usable
├── PipelineInvalid       a definition cannot be parsed, or breaks a rule
│   ├── PipelineLoops     the child pipelines of a definition lead back to it
│   └── StepUnknown       a definition names a step type or child pipeline that does not exist
NotFound
├── TransactionUnknown
└── PipelineUnknown       no pipeline has this name, or the pipeline has no such version
Conflict
├── TransactionFinished   the transaction has ended already
└── VersionTaken          another definition is stored under this version
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
