// For wheels: libstdc++ has this function since GLIBCXX_3.4.29 (GCC 11), and manylinux_2_28 ends with 3.4.25. Headers of newer compilers
// call it.
#include <new>

namespace std {
__attribute__((visibility("hidden"))) void __throw_bad_array_new_length() { throw bad_array_new_length(); }
} // namespace std
