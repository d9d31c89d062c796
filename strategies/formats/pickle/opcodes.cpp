#include "strategies/formats/pickle/opcodes.h"

#include <utility>

#include "mapping/base/format.h"

namespace dckpt::pickle {

std::string why_too_old(Op op, std::size_t position) {
  constexpr std::pair<char, const char*> kOld[] = {
      {'2', "DUP"},     {'F', "FLOAT"},  {'I', "INT"},       {'L', "LONG"},
      {'P', "PERSID"},  {'S', "STRING"}, {'T', "BINSTRING"}, {'U', "SHORT_BINSTRING"},
      {'V', "UNICODE"}, {'d', "DICT"},   {'g', "GET"},       {'i', "INST"},
      {'l', "LIST"},    {'o', "OBJ"},    {'p', "PUT"},
  };
  for (const auto& [byte, name] : kOld) {
    if (position > 0 && byte == static_cast<char>(op))
      return str_format(
          "the pickle has the opcode {} ('{}'), which only pickle protocols 0 and 1 and Python 2 "
          "use; load the file in Python 3 and save it again with protocol 2 or newer",
          name, std::string_view(&byte, 1));
  }
  return "";
}

}  // namespace dckpt::pickle
