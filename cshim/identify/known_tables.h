// The virtual function tables by which NIXL releases call a backend, and the comparison of a stock plugin with one of
// them.
#pragma once

#include "elf_vtables.h"
#include "nixl_engine_abi.h"

#include <array>
#include <span>

namespace gorail {

// One table. A NIXL with another table needs a row here, and in plugin.cpp a function that creates engines with that
// table.
struct KnownTable {
    const char *nixl; // NIXL releases
    std::span<const char *const> slots; // mangled names, @ for the class
};

inline constexpr size_t known_count = 1;
extern const std::array<KnownTable, known_count> known_tables;

enum class Verdict { unknown, same, different };

struct Judgement {
    Verdict verdict = Verdict::unknown;
    std::string difference; // the first difference, human-readable
};

// Compares the engines of a stock plugin with this table. Unknown: the file names too few of their functions.
Judgement judge(int fd, const KnownTable &known);

} // namespace gorail
