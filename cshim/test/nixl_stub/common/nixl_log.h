// Stands in for NIXL's own header of this name, which needs absl: its backend headers use no more of it than this.
#pragma once
#include <iostream>
#define NIXL_ASSERT(cond) ((void)(cond))
#define NIXL_ERROR std::cerr
