#ifndef CASES_H
#define CASES_H

/* A test by name; the program prints what it saw and ends with status 0. */
typedef struct test_case {
    const char *name;
    void (*run)(void);
} test_case;

extern const test_case op_cases[], life_cases[], way_cases[]; /* end with a NULL name */

#endif
