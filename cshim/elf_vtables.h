// The virtual tables of classes, read from a shared object's file. Nothing in the file is believed: each offset and size
// is checked, and what cannot be read is left out.
#pragma once

#include <string>
#include <vector>

namespace gorail {

// The table of a class in the global namespace: for each slot the mangled names of the function there. Several, where the
// linker folded equal functions; none, where the file does not say.
struct VTable {
    std::string owner;
    std::vector<std::string> parent; // names of the type information of the class that it derives from, if that is one
    std::vector<std::vector<std::string>> slots;
};

// local: also by the names that strip would take, of which there can be a hundred thousand.
std::vector<VTable> read_vtables(int fd, bool local);

// The file's build id in hex; empty without one.
std::string read_build_id(int fd);

} // namespace gorail
