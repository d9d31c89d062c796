#include "operations/convert/model/model_folder.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "configs/yaml/yaml.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "migration/adapters/peft_adapter.h"
#include "operations/convert/model/model_config.h"
#include "operations/convert/source/conversion_source.h"
#include "operations/inspect/modelopt.h"
#include "strategies/contract/common_state.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/safetensors/model_files.h"
#include "strategies/safetensors/save_strategy.h"
#include "strategies/safetensors/writer.h"

namespace dckpt {
namespace {

/// Suffixes of weights in any format, and of their indexes.
constexpr std::array<std::string_view, 12> kWeights = {
    ".safetensors", ".index.json", ".bin",     ".pt",   ".pth",    ".ckpt",
    ".gguf",        ".h5",         ".msgpack", ".onnx", ".distcp", ".npz"};

/// ModelOpt's description of the weights.
constexpr const char* kQuantizationFile = "hf_quant_config.json";

bool is_of_model(const FileInfo& entry) {
  return !entry.name.starts_with('.') && entry.name != kIntegrityFile &&
         std::ranges::none_of(
             kWeights, [&](std::string_view suffix) { return entry.name.ends_with(suffix); });
}

void list_files(ModelFolder& folder, bool with_adapter, bool quantized) {
  std::vector<std::string> left;
  for (const FileInfo& entry : folder.storage->list("")) {
    if (!is_of_model(entry) || (!with_adapter && entry.name == kAdapterConfigFile)) continue;
    if (!quantized && entry.name == kQuantizationFile) {
      folder.findings.push_back(
          {FindingCode::kModelFilesLeftOut,
           str_format("{} stays behind: the weights are no longer as it says", kQuantizationFile),
           {kQuantizationFile}});
      continue;
    }
    if (entry.kind != FileInfo::Kind::kRegular || entry.size > kMaxModelFile) {
      left.push_back(entry.name);
      continue;
    }
    folder.files.push_back(entry.name);
    folder.bytes += entry.size;
  }
  if (!folder.files.empty())
    folder.findings.push_back({FindingCode::kModelFilesCopied,
                               "the model's files go along: " + quoted_list(folder.files, 10),
                               folder.files});
  if (!left.empty())
    folder.findings.push_back(
        {FindingCode::kModelFilesLeftOut,
         str_format("not copied, because they are folders, links or larger than {}: {}",
                    human_bytes(kMaxModelFile), quoted_list(left, 10)),
         left});
}

/// Copies ModelOpt's state, byte for byte.
void take_modelopt(const CheckpointReader& source, ModelFolder& folder) {
  if (source.info().single_file) return;
  folder.files = modelopt_files(source.storage());
  if (folder.files.empty()) {
    if (const auto state = modelopt_state(source))
      folder.findings.push_back(
          {FindingCode::kFormKept,
           str_format("ModelOpt's state stays in the common state ({}), where Megatron "
                      "looks for it only with rank folders",
                      quote(state->place))});
    return;
  }
  folder.storage = source.storage().shared_from_this();
  for (const std::string& name : folder.files) folder.bytes += folder.storage->open(name)->size();
  folder.findings.push_back(
      {FindingCode::kModelFilesCopied,
       str_format("ModelOpt's state goes along: {}", quoted_list(folder.files, 4))});
}

/// Reports ModelOpt's state, which formats of tensors alone leave out.
void leave_modelopt(const CheckpointReader& source, Findings& findings) {
  if (const auto state = modelopt_state(source))
    findings.push_back({FindingCode::kModelFilesLeftOut,
                        str_format("ModelOpt's state stays behind: {}; the weights are as ModelOpt "
                                   "has left them",
                                   quote(state->place))});
}

/// The facts that the files state about the model.
void carry_annotations(const CheckpointReader& source, ChosenTarget& target, Findings& findings) {
  if (source.info().annotations.empty()) return;
  YamlNode all;
  all.kind = YamlNode::Kind::kMap;
  std::vector<std::string> names;
  for (const auto& [name, text] : source.info().annotations) {
    names.push_back(name);
    all.keys.push_back(YamlNode::string(name));
    all.values.push_back(YamlNode::string(text));
  }
  OwnOptions& options = target.save.strategy.options;
  const bool has_own = options.has(kSafetensorsMetadataOption);
  if (has_own || !target.format->conventions.model_folder)
    return findings.push_back(
        {FindingCode::kModelFilesLeftOut,
         "what the files say in their __metadata__ stays behind: " + quoted_list(names, 10)});
  YamlNode own = options.tree();
  own.kind = YamlNode::Kind::kMap;
  own.keys.push_back(YamlNode::plain(kSafetensorsMetadataOption));
  own.values.push_back(std::move(all));
  options = OwnOptions(std::move(own));
}

/// Reports an adapter in `folder` that is not merged. None of its files are copied, since
/// transformers would look for its weights.
void leave_adapter(const Storage& folder, const std::optional<Location>& merged,
                   Findings& findings) {
  const std::vector<std::string> left = adapter_files(folder);
  if (left.empty()) return;
  const std::string place = folder.display_path("");
  if (merged && merged->directory()->absolute("") == folder.absolute("")) return;
  findings.push_back(
      {.code = FindingCode::kAdapterLeftOut,
       .message = str_format("the adapter beside the model was not merged and stays behind: {}; "
                             "dckpt convert --merge-adapter {} merges it",
                             quoted_list(left), quote(place)),
       .keys = left,
       .severity = Severity::kWarning});
}

/// A folder of an adapter has other names, and instead of config.json another configuration.
void finish_adapter(ChosenTarget& target, ModelFolder& folder) {
  OwnOptions& own = target.save.strategy.options;
  if (!own.has(kSafetensorsNamesOption))
    own.set(kSafetensorsNamesOption, name_of(kSafetensorsNamesNames, SafetensorsNames::kAdapter));
  if (std::ranges::find(folder.files, kAdapterConfigFile) == folder.files.end())
    folder.findings.push_back(
        {FindingCode::kModelFilesLeftOut,
         str_format("there is no {}, without which PEFT loads no adapter; give the folder that has "
                    "it with --model-files",
                    kAdapterConfigFile)});
}

}  // namespace

ModelFolder model_folder(const CheckpointReader& source, const Metadata& written,
                         const std::vector<ConfigEntry>& config, ChosenTarget& target,
                         const ConversionRequest& request) {
  const std::optional<Location>& merged = request.source.merge_adapter;
  const std::optional<Location>& files = request.target.model_files;
  ModelFolder folder;
  const bool is_adapter = holds_peft_adapter(source.metadata());
  const bool is_model = !is_adapter && !source.info().single_file;
  carry_annotations(source, target, folder.findings);
  if (is_model) leave_adapter(source.storage(), merged, folder.findings);
  if (!target.format->conventions.model_folder) {
    take_modelopt(source, folder);
    if (source.info().conventions.model_folder) {
      std::vector<std::string> left;
      for (const FileInfo& entry : source.storage().list("")) {
        if (is_of_model(entry) && (is_adapter || entry.name != kAdapterConfigFile))
          left.push_back(entry.name);
      }
      if (!left.empty())
        folder.findings.push_back({FindingCode::kModelFilesLeftOut,
                                   "the model's files stay behind: " + quoted_list(left, 10),
                                   left});
    }
    return folder;
  }
  leave_modelopt(source, folder.findings);
  if (files) {
    folder.storage = model_files(files);
  } else if (source.info().conventions.model_folder) {
    folder.storage = source.storage().shared_from_this();
  }
  const bool quantized = keeps_quantization(source, request.source.map);
  if (folder.storage != nullptr) list_files(folder, is_adapter, quantized);
  if (files && !is_adapter && folder.storage->absolute("") != source.storage().absolute(""))
    leave_adapter(*folder.storage, merged, folder.findings);
  if (is_adapter) {
    finish_adapter(target, folder);
    return folder;
  }
  if (std::ranges::find(folder.files, kModelConfig) != folder.files.end()) {
    adapt_config(source, written, config, request, folder);
  } else {
    folder.findings.push_back(
        {FindingCode::kModelFilesLeftOut,
         "there is no config.json, without which transformers loads no model; give the folder that "
         "has it with --model-files"});
  }
  return folder;
}

void name_files_left(const CheckpointReader& source, ModelFolder& folder,
                     const std::vector<std::string>& beside) {
  const CheckpointInfo& info = source.info();
  if (info.single_file && info.single_file->find('/') == std::string::npos) return;
  std::set<std::string> known{kIntegrityFile, kConfigFile, kCommonFile};
  const auto add = [&](const auto& names) {
    for (const std::string& name : names) known.insert(name.substr(0, name.find('/')));
  };
  add(info.index_files);
  if (info.single_file) add(std::vector{*info.single_file});
  add(source.metadata().files);
  add(folder.files);
  for (const Finding& finding : folder.findings) {
    if (finding.code == FindingCode::kModelFilesLeftOut ||
        finding.code == FindingCode::kAdapterLeftOut)
      add(finding.keys);
  }
  std::vector<std::string> left;
  for (const FileInfo& entry : source.storage().list("")) {
    if (!known.contains(entry.name) && !entry.name.starts_with('.') &&
        !entry.name.ends_with(".distcp"))
      left.push_back(entry.name);
  }
  left.insert(left.end(), beside.begin(), beside.end());
  if (!left.empty())
    folder.findings.push_back({FindingCode::kModelFilesLeftOut,
                               "what else is in the folder stays behind: " + quoted_list(left, 10),
                               left});
}

}  // namespace dckpt
