// Ends a test program with the line of a condition that does not hold.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(cond)                                                                                                                                  \
    do {                                                                                                                                             \
        if (!(cond)) {                                                                                                                               \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                                                                          \
            std::abort();                                                                                                                            \
        }                                                                                                                                            \
    } while (0)
