#include "strategies/formats/pickle/python2_names.h"

namespace dckpt::pickle {
namespace {

using Name = std::pair<std::string_view, std::string_view>;

constexpr std::pair<Name, Name> kRenamed[] = {
    {{"UserDict", "IterableUserDict"}, {"collections", "UserDict"}},
    {{"UserList", "UserList"}, {"collections", "UserList"}},
    {{"UserString", "UserString"}, {"collections", "UserString"}},
    {{"__builtin__", "intern"}, {"sys", "intern"}},
    {{"__builtin__", "long"}, {"builtins", "int"}},
    {{"__builtin__", "reduce"}, {"functools", "reduce"}},
    {{"__builtin__", "unichr"}, {"builtins", "chr"}},
    {{"__builtin__", "unicode"}, {"builtins", "str"}},
    {{"__builtin__", "xrange"}, {"builtins", "range"}},
    {{"itertools", "ifilter"}, {"builtins", "filter"}},
    {{"itertools", "ifilterfalse"}, {"itertools", "filterfalse"}},
    {{"itertools", "imap"}, {"builtins", "map"}},
    {{"itertools", "izip"}, {"builtins", "zip"}},
    {{"itertools", "izip_longest"}, {"itertools", "zip_longest"}},
};

constexpr std::pair<std::string_view, std::string_view> kMovedModules[] = {
    {"__builtin__", "builtins"},
    {"copy_reg", "copyreg"},
    {"exceptions", "builtins"},
};

}  // namespace

Name python3_name(std::string_view module, std::string_view name) {
  for (const auto& [old, renamed] : kRenamed)
    if (old == Name(module, name)) return renamed;
  for (const auto& [old, moved] : kMovedModules)
    if (old == module) return {moved, name};
  return {module, name};
}

}  // namespace dckpt::pickle
