// The virtual functions by which NIXL releases call a backend, and the judgement of a stock plugin: which of them its
// NIXL has, and in which order.
#pragma once

#include "elf_vtables.h"
#include "nixl_engine_abi.h"

#include <cstdint>
#include <span>

namespace gorail {

// The releases with the table of nixl_engine_abi.h, and its functions: mangled names, @ for the class.
inline constexpr const char *known_releases = "NIXL 1.0.0 .. 1.5.1";
inline constexpr size_t known_functions = 27;
extern const std::span<const char *const> known_table;

// What an added function answers: the same as its body in NIXL's base class, which is NIXL's word for "this backend has no such thing".
enum class Answer : uint8_t { no, not_supported };

// A function that a NIXL may have beside the known ones, at any place. Open changes of NIXL add it without another version of the interface.
struct Addition {
    const char *name; // mangled, @ for the class
    Answer answer;
};
extern const std::span<const Addition> additions;

// The functions of a NIXL's table, in order: an index of known_table, or known_functions + an index of additions.
using Order = std::vector<uint8_t>;
inline constexpr size_t most_functions = 48;

// unknown: the file says too little. same: the known table. added: the known functions in their order, and additions. different: anything else.
enum class Verdict { unknown, same, added, different };

struct Judgement {
    Verdict verdict = Verdict::unknown;
    Order order;            // same and added
    std::string difference; // different: the first difference, human-readable
};

// Judges the engines of a stock plugin.
Judgement judge(int fd);

// The names of an order's additions, joined by ", ".
std::string added_names(const Order &order);

} // namespace gorail
