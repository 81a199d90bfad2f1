#ifndef CASES_H
#define CASES_H

/* A test case by name. It prints its observations; then the process exits with status 0. */
typedef struct test_case {
    const char *name;
    void (*run)(void);
} test_case;

extern const test_case op_cases[], lifetime_cases[], behaviour_cases[]; /* end with a NULL name */

#endif
