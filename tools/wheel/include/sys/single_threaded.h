/* For wheels, which are built for glibc 2.28: this header is from 2.32. libstdc++'s headers include it whenever it exists. They then
 * use atomic operations always. */
#ifndef GORAIL_SINGLE_THREADED_H
#define GORAIL_SINGLE_THREADED_H
static const char __libc_single_threaded = 0;
#endif
