// The tables of virtual functions that releases of NIXL call a backend by, and which of them a stock plugin has.
#pragma once

#include "elf_vtables.h"
#include "nixl_engine_abi.h"

#include <array>
#include <span>

namespace gorail {

// One table. A NIXL that calls backends by another one needs a row here, and in plugin.cpp what makes engines with such a
// table.
struct KnownTable {
    const char *nixl; // its releases
    std::span<const char *const> slots; // mangled names, @ for the class
};

inline constexpr size_t known_count = 1;
extern const std::array<KnownTable, known_count> known_tables;

enum class Verdict { unknown, same, different };

struct Judgement {
    Verdict verdict = Verdict::unknown;
    std::string difference; // the first, for a person
};

// Whether the engines of a stock plugin have this table. Unknown: the file names too few of their functions.
Judgement judge(int fd, const KnownTable &known);

} // namespace gorail
