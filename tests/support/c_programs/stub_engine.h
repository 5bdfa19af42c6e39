/* An engine without Python, for tests of the C core alone: one graph, y = 2 x + 1 over four floats. */
#ifndef STUB_ENGINE_H
#define STUB_ENGINE_H

#include <stdatomic.h>

/* Engine objects that exist. */
extern atomic_int stub_live;
/* Runs that were computed. */
extern atomic_int stub_runs;

#endif
