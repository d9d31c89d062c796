#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"

namespace DCKPT_API dckpt {

class WireReader;
class WireWriter;

/// The kind of a remark on work that succeeded. The names are stable: programs and scripts compare
/// with them.
enum class FindingCode : std::uint8_t {
  kKeysChanged,         ///< keys have become those of another scheme
  kKeysRenamed,         ///< rules have renamed keys
  kKeysKept,            ///< keys are as they were, although the result's readers use others
  kKeysLeftOut,         ///< keys that patterns leave out before a map, or of the common state
  kKeysUnknown,         ///< keys that no known module of Megatron-Core has
  kKeysDropped,         ///< keys that a map or a format has no place for
  kCopiesDiffer,        ///< tensors that are dropped as copies of others, and are not equal
  kOptimizerLeftOut,    ///< the optimizer's state, or its settings
  kCommonStateLeftOut,  ///< a format that stores only tensors has no place for it
  kDataLost,            ///< data that is left out because its files are missing or too short
  kFilesMayBeMissing,   ///< files without which the others look like a whole checkpoint
  kFormChanged,         ///< the same values are stored in another form
  kFormKept,            ///< a form that the result's readers may not expect stays
  kValuesCast,          ///< elements have another dtype, and come back as they were
  kValuesRounded,       ///< elements have lost digits
  kValuesNotCast,       ///< elements that keep their dtype, although another was requested
  kParameters,          ///< the numbers of parameters before and after
  kNumberOverridden,    ///< a number that is given contradicts the configuration
  kVocabularyPadded,    ///< rows that pad the vocabulary stay, or Megatron would pad differently
  kStateMissing,        ///< state that a resuming run looks for and does not find
  kStateAmbiguous,      ///< tensors whose place the values alone do not tell
  kLayoutAssumed,       ///< parallel sizes that no option gives
  kOrderAssumed,        ///< an order of heads that nothing states
  kModelFilesCopied,    ///< config.json, the tokenizer and others are copied, perhaps changed
  kModelFilesLeftOut,   ///< files that stay behind or are missing
  kConfigDiffers,       ///< config.json describes another model than the tensors are of
  kAdapterMerged,       ///< tensors that a LoRA adapter has changed
  kAdapterLeftOut,      ///< an adapter beside a model that was not merged
  kIterationConflict,   ///< the names of folders and the contents disagree
  kReaders,             ///< the releases that load the result
  kNoEffect,            ///< an option, or a field of a policy, without effect
  kKeysDiffer,          ///< a state requests other keys than the checkpoint has (load.strict)
  kValuesKept,          ///< values of a state stay, because the checkpoint lacks them
  kValuesReplaced,      ///< tensors of a state that were not filled, because something else is
                        ///< stored
  kValuesTruncated,     ///< less is requested than is stored (load.allow_truncation)
  kObjectsNotLoaded,    ///< objects that were saved under another layout (load.objects)
  kNothingRequested,    ///< a state that requests no tensor
  kKeysNotLoaded,       ///< tensors of a checkpoint that no rank's state requests
  kManifestUnusable,    ///< an integrity.json that nothing can be compared with
  kRanksDiffer,         ///< values that differ between ranks, of which one rank's are saved for all
  kBoxesContradict,     ///< a box outside its tensor, a shape that does not fit its original
  kElementsOverlap,     ///< elements that two chunks hold
  kElementsMissing,     ///< elements that no chunk holds
  kNotFinite,           ///< NaN or infinite elements
  kValuesImplausible,  ///< weights look as if they had another meaning, such as norms without their
                       ///< 1
  kStateImpossible     ///< optimizer state that no optimizer makes, such as a negative variance
};
inline constexpr EnumNames<FindingCode, 46> kFindingCodeNames{{
    {FindingCode::kKeysChanged, "keys-changed"},
    {FindingCode::kKeysRenamed, "keys-renamed"},
    {FindingCode::kKeysKept, "keys-kept"},
    {FindingCode::kKeysLeftOut, "keys-left-out"},
    {FindingCode::kKeysUnknown, "keys-unknown"},
    {FindingCode::kKeysDropped, "keys-dropped"},
    {FindingCode::kCopiesDiffer, "copies-differ"},
    {FindingCode::kOptimizerLeftOut, "optimizer-left-out"},
    {FindingCode::kCommonStateLeftOut, "common-state-left-out"},
    {FindingCode::kDataLost, "data-lost"},
    {FindingCode::kFilesMayBeMissing, "files-may-be-missing"},
    {FindingCode::kFormChanged, "form-changed"},
    {FindingCode::kFormKept, "form-kept"},
    {FindingCode::kValuesCast, "values-cast"},
    {FindingCode::kValuesRounded, "values-rounded"},
    {FindingCode::kValuesNotCast, "values-not-cast"},
    {FindingCode::kParameters, "parameters"},
    {FindingCode::kNumberOverridden, "number-overridden"},
    {FindingCode::kVocabularyPadded, "vocabulary-padded"},
    {FindingCode::kStateMissing, "state-missing"},
    {FindingCode::kStateAmbiguous, "state-ambiguous"},
    {FindingCode::kLayoutAssumed, "layout-assumed"},
    {FindingCode::kOrderAssumed, "order-assumed"},
    {FindingCode::kModelFilesCopied, "model-files-copied"},
    {FindingCode::kModelFilesLeftOut, "model-files-left-out"},
    {FindingCode::kConfigDiffers, "config-differs"},
    {FindingCode::kAdapterMerged, "adapter-merged"},
    {FindingCode::kAdapterLeftOut, "adapter-left-out"},
    {FindingCode::kIterationConflict, "iteration-conflict"},
    {FindingCode::kReaders, "readers"},
    {FindingCode::kNoEffect, "no-effect"},
    {FindingCode::kKeysDiffer, "keys-differ"},
    {FindingCode::kValuesKept, "values-kept"},
    {FindingCode::kValuesReplaced, "values-replaced"},
    {FindingCode::kValuesTruncated, "values-truncated"},
    {FindingCode::kObjectsNotLoaded, "objects-not-loaded"},
    {FindingCode::kNothingRequested, "nothing-requested"},
    {FindingCode::kKeysNotLoaded, "keys-not-loaded"},
    {FindingCode::kManifestUnusable, "manifest-unusable"},
    {FindingCode::kRanksDiffer, "ranks-differ"},
    {FindingCode::kBoxesContradict, "boxes-contradict"},
    {FindingCode::kElementsOverlap, "elements-overlap"},
    {FindingCode::kElementsMissing, "elements-missing"},
    {FindingCode::kNotFinite, "not-finite"},
    {FindingCode::kValuesImplausible, "values-implausible"},
    {FindingCode::kStateImpossible, "state-impossible"},
}};

enum class Severity : std::uint8_t {
  kNote,     ///< a report of work that was done as requested
  kWarning,  ///< a result that may be unintended
  kError     ///< a fault that makes the result wrong or useless
};
inline constexpr EnumNames<Severity, 3> kSeverityNames{
    {{Severity::kNote, "note"}, {Severity::kWarning, "warning"}, {Severity::kError, "error"}}};

/// Returns the severity of findings of this kind for which none is given.
constexpr Severity usual_severity(FindingCode code) noexcept {
  switch (code) {
    case FindingCode::kKeysUnknown:
    case FindingCode::kCopiesDiffer:
    case FindingCode::kDataLost:
    case FindingCode::kFilesMayBeMissing:
    case FindingCode::kValuesRounded:
    case FindingCode::kNumberOverridden:
    case FindingCode::kStateMissing:
    case FindingCode::kStateAmbiguous:
    case FindingCode::kOrderAssumed:
    case FindingCode::kConfigDiffers:
    case FindingCode::kIterationConflict:
    case FindingCode::kNoEffect:
    case FindingCode::kKeysDiffer:
    case FindingCode::kValuesKept:
    case FindingCode::kValuesReplaced:
    case FindingCode::kValuesTruncated:
    case FindingCode::kObjectsNotLoaded:
    case FindingCode::kNothingRequested:
    case FindingCode::kKeysNotLoaded:
    case FindingCode::kManifestUnusable:
    case FindingCode::kRanksDiffer:
    case FindingCode::kValuesImplausible: return Severity::kWarning;
    case FindingCode::kBoxesContradict:
    case FindingCode::kElementsOverlap:
    case FindingCode::kElementsMissing:
    case FindingCode::kNotFinite:
    case FindingCode::kStateImpossible: return Severity::kError;
    default: return Severity::kNote;
  }
}

/// One thing that was found, for programs (code, keys) and as text (message).
struct Finding {
  FindingCode code{};
  std::string message{};                  ///< a sentence without its full stop
  std::vector<std::string> keys{};        ///< the keys concerned, if any
  std::optional<std::string> file{};      ///< the file concerned, relative to the checkpoint
  std::optional<std::uint64_t> offset{};  ///< byte offset in that file
  Severity severity = usual_severity(code);

  friend bool operator==(const Finding&, const Finding&) = default;
};
using Findings = std::vector<Finding>;

/// Returns the sentences alone, in their order.
std::vector<std::string> messages_of(const Findings& findings);
void append(Findings& findings, Findings more);
/// Logs the message as a warning, and keeps the finding.
void warn(Findings& findings, Finding finding);
/// Throws CheckpointError (mismatch) with `what` and the findings whose codes are among `errors`.
/// Does nothing if there are none.
void refuse(const Findings& findings, const std::vector<FindingCode>& errors,
            const std::string& what);

// The wire format between ranks. Reading throws CheckpointError (corrupt).
void write_to(WireWriter& writer, const Findings& findings);
void read_from(WireReader& reader, Findings& findings);

}  // namespace dckpt
