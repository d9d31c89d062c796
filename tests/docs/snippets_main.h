#pragma once

#include <map>
#include <string>

// The C++ blocks of all pages in their surroundings, by name.

std::map<std::string, void (*)()> core_snippets();
std::map<std::string, void (*)()> torch_snippets();
