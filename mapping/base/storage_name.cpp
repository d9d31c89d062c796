#include "mapping/base/storage_name.h"

#include <algorithm>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

[[noreturn]] void refuse(std::string_view name, const std::string& why) {
  throw_error(ErrorCode::kCorrupt, "refusing the file name {}: {}", quote(name), why);
}

}  // namespace

std::vector<std::string_view> name_components(std::string_view name) {
  if (name.empty()) refuse(name, "it is empty");
  if (name.front() == '/') refuse(name, "it is absolute; names inside a checkpoint are relative");
  if (name.find('\0') != std::string_view::npos) refuse(name, "it holds a NUL byte");
  if (name.size() > kMaxNameBytes)
    refuse(name, str_format("it has {} bytes, the limit is {}", grouped(name.size()),
                            grouped(kMaxNameBytes)));
  std::vector<std::string_view> components;
  for (std::size_t start = 0; start <= name.size();) {
    const std::size_t end = std::min(name.find('/', start), name.size());
    const std::string_view component = name.substr(start, end - start);
    if (component.empty()) refuse(name, "it has an empty component");
    if (component == "." || component == "..") refuse(name, "a component is " + quote(component));
    if (component.size() > kMaxComponentBytes) {
      refuse(name, str_format("a component has {} bytes, the limit is {}",
                              grouped(component.size()), grouped(kMaxComponentBytes)));
    }
    if (components.size() == kMaxNameDepth)
      refuse(name, str_format("it has more than {} components", kMaxNameDepth));
    components.push_back(component);
    start = end + 1;
  }
  return components;
}

std::vector<std::string_view> directory_components(std::string_view name) {
  return name.empty() ? std::vector<std::string_view>{} : name_components(name);
}

std::string join_name(std::string_view directory, std::string_view name) {
  std::string joined(directory);
  if (!joined.empty()) joined += '/';
  return joined += name;
}

std::string parent_name(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  return std::string(slash == std::string_view::npos ? std::string_view{} : name.substr(0, slash));
}

std::string base_name(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  return std::string(slash == std::string_view::npos ? name : name.substr(slash + 1));
}

}  // namespace dckpt
