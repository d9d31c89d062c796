#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"

namespace DCKPT_API dckpt {

/// What there is to say of a piece of work that succeeded. The names are stable: programs and
/// scripts compare with them.
enum class FindingCode : std::uint8_t {
  kKeysChanged,         ///< keys have become those of another scheme
  kKeysRenamed,         ///< rules have renamed keys
  kKeysKept,            ///< keys are as they were, although the result's readers use others
  kKeysLeftOut,         ///< what patterns leave out before a map, or of the common state
  kKeysDropped,         ///< what a map or a format has no place for
  kOptimizerLeftOut,    ///< its state, or its settings
  kCommonStateLeftOut,  ///< a format of tensors alone has no place for it
  kDataLost,            ///< what is left out because data files are missing or too short
  kFormChanged,         ///< the same values are stored in another form
  kFormKept,            ///< a form that the result's readers may not expect stays
  kValuesCast,          ///< elements have another dtype, and come back as they were
  kValuesRounded,       ///< elements have lost digits
  kValuesNotCast,       ///< elements that keep their dtype, although another was asked for
  kParameters,          ///< how many there are before and after
  kNumberOverridden,    ///< a number that is given contradicts the configuration
  kVocabularyPadded,    ///< rows that pad the vocabulary stay, or Megatron would pad otherwise
  kStateMissing,        ///< what a run that resumes looks for and does not find
  kStateAmbiguous,      ///< values alone do not say what belongs where
  kLayoutAssumed,       ///< parallel sizes that no option gives
  kModelFilesCopied,    ///< config.json, the tokenizer and others go along, perhaps changed
  kModelFilesLeftOut,   ///< files that stay behind, or are not there
  kIterationConflict,   ///< the names of folders and the contents disagree
  kReaders,             ///< which releases load the result
  kNoEffect             ///< an option, or a field of a policy, without effect
};
inline constexpr EnumNames<FindingCode, 24> kFindingCodeNames{{
    {FindingCode::kKeysChanged, "keys-changed"},
    {FindingCode::kKeysRenamed, "keys-renamed"},
    {FindingCode::kKeysKept, "keys-kept"},
    {FindingCode::kKeysLeftOut, "keys-left-out"},
    {FindingCode::kKeysDropped, "keys-dropped"},
    {FindingCode::kOptimizerLeftOut, "optimizer-left-out"},
    {FindingCode::kCommonStateLeftOut, "common-state-left-out"},
    {FindingCode::kDataLost, "data-lost"},
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
    {FindingCode::kModelFilesCopied, "model-files-copied"},
    {FindingCode::kModelFilesLeftOut, "model-files-left-out"},
    {FindingCode::kIterationConflict, "iteration-conflict"},
    {FindingCode::kReaders, "readers"},
    {FindingCode::kNoEffect, "no-effect"},
}};

/// One thing that was found, for programs (code, keys) and for people (message).
struct Finding {
  FindingCode code{};
  std::string message{};            ///< a sentence without its full stop
  std::vector<std::string> keys{};  ///< those that it is about, if it is about some
};
using Findings = std::vector<Finding>;

/// The sentences alone, in their order.
std::vector<std::string> messages_of(const Findings& findings);
/// Moves `more` behind what is there.
void append(Findings& findings, Findings more);

}  // namespace dckpt
