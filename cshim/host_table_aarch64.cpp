// The place of getSupportedMems on aarch64 (host_table.h). The engine is in x0 whatever the function returns. The place of a returned object
// is in x8, where C++ cannot read it: it becomes the second argument. A call without such an object leaves a chance value in x8, and nothing
// tells the one from the other. So HostTable::assumed_mems writes there only after getConnInfo has come by its known place: in front of it is
// then no function more. Before, no known NIXL asks for the memory types, and the answer is false.
#ifdef __aarch64__

__asm__(R"(
    .pushsection .text
    .balign 16
    .global gorail_assumed_mems_x8
    .hidden gorail_assumed_mems_x8
    .type gorail_assumed_mems_x8, %function
gorail_assumed_mems_x8:
    .cfi_startproc
    hint #34 // bti c
    mov x1, x8
    b gorail_assumed_mems
    .cfi_endproc
    .size gorail_assumed_mems_x8, . - gorail_assumed_mems_x8
    .popsection
)");

#endif
