"""The errors of this module, named by what happened.

Overloaded
└── TransactionQueueFull  the queue of a node group has as many transactions as it may have
QuotaExceeded             an owner starts too many transactions or stores too much
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
├── NotDead               the transaction is no dead letter
└── VersionTaken          another definition is stored under this version
"""

from __future__ import annotations

from angarium.runtime.errors import AngariumError, Conflict, InputInvalid, NotFound, Overloaded


class TransactionQueueFull(Overloaded):
    code = "queue_full"


class QuotaExceeded(AngariumError):
    code = "quota_exceeded"
    http_status = 429


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


class NotDead(Conflict):
    code = "not_dead"


class VersionTaken(Conflict):
    code = "version_taken"
