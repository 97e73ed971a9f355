"""Everything that users are warned of: each warning knows what was found, and what to do about it.

Whoever finds something doubtful makes one of these; only the command line turns them into lines.
"""

from treeopt.records.warnings.caution import Caution, FormatCaution, listed, sureness
from treeopt.records.warnings.installation import (
    DeviceUnseen,
    FewThreads,
    MemoryTaken,
    MissingPackages,
    OnBattery,
    ProcessorQuota,
    SharedCores,
    SlowGovernor,
    TorchMissing,
)
from treeopt.records.warnings.measured import (
    DisturbedTimes,
    OtherPrograms,
    PlainSpeedChanged,
    ScatteredTimes,
    SpeedChanged,
)
from treeopt.records.warnings.others import OtherConditions, OtherHeads, OtherLayers, OtherPair, RacedElsewhere
from treeopt.records.warnings.plans import (
    AcceptanceElsewhere,
    BatchesWithoutSteps,
    BatchesWithoutTimes,
    BeyondLargestPass,
    ImportedWithoutErrors,
    LongerThanMeasured,
    NamedDraft,
    OutsideMeasured,
    SmallBatchesUnmeasured,
    SpeculationOff,
    UnsureChoice,
    WithoutProfile,
    WithoutRecord,
)
from treeopt.records.warnings.texts import (
    TextDiffers,
    TextsDiffer,
    TextsOfBatchDiffer,
    TextsOfStreamsDiffer,
    UpdateDropped,
)

__all__ = [
    "AcceptanceElsewhere",
    "BatchesWithoutSteps",
    "BatchesWithoutTimes",
    "BeyondLargestPass",
    "Caution",
    "DeviceUnseen",
    "DisturbedTimes",
    "FewThreads",
    "FormatCaution",
    "ImportedWithoutErrors",
    "LongerThanMeasured",
    "MemoryTaken",
    "MissingPackages",
    "NamedDraft",
    "OnBattery",
    "OtherConditions",
    "OtherHeads",
    "OtherLayers",
    "OtherPair",
    "OtherPrograms",
    "OutsideMeasured",
    "PlainSpeedChanged",
    "ProcessorQuota",
    "RacedElsewhere",
    "ScatteredTimes",
    "SharedCores",
    "SlowGovernor",
    "SmallBatchesUnmeasured",
    "SpeculationOff",
    "SpeedChanged",
    "TextDiffers",
    "TextsDiffer",
    "TextsOfBatchDiffer",
    "TextsOfStreamsDiffer",
    "TorchMissing",
    "UnsureChoice",
    "UpdateDropped",
    "WithoutProfile",
    "WithoutRecord",
    "listed",
    "sureness",
]
