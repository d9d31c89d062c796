#include "dist_checkpointing/staging_token.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <random>

namespace dckpt {

std::string staging_token() {
  std::array<char, 64> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  std::string token;
  for (const char c : std::string(host.data())) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
    if (plain) token += c;
  }
  std::array<char, 32> number{};
  std::snprintf(number.data(), number.size(), "-%d-%08x", static_cast<int>(::getpid()), std::random_device{}());
  return token + number.data();
}

std::string random_id() {
  std::random_device device;
  std::array<char, 40> text{};
  const unsigned a = device(), b = device(), c = device(), d = device();
  std::snprintf(text.data(), text.size(), "%08x-%04x-4%03x-%04x-%04x%08x", a, b >> 16, b & 0xFFF, 0x8000U | (c >> 18), c & 0xFFFF, d);
  return text.data();
}

}  // namespace dckpt
