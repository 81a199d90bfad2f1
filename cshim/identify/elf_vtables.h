// The virtual tables of classes, read from a shared object's file. The file is untrusted: each offset and size is
// checked, and unreadable parts are skipped.
#pragma once

#include <string>
#include <vector>

namespace gorail {

// The table of a class in the global namespace. Each slot has the mangled names of its function: several names if the
// linker folded equal functions, none if the file has no name.
struct VTable {
    std::string owner;
    std::vector<std::string> parent; // names of the base class's type information, if there is one
    std::vector<std::vector<std::string>> slots;
};

// local: also read names that strip would remove. There may be a hundred thousand of these.
std::vector<VTable> read_vtables(int fd, bool local);

// What a class's table holds, a letter for each function: p for a pure virtual function, c for any other. It is found by the class's type
// information, which no strip removes, and needs no names. Empty if the file has no such table, or several unlike ones.
std::string read_kinds(int fd, const std::string &owner);

// The file's build id in hex; empty if the file has none.
std::string read_build_id(int fd);

} // namespace gorail
