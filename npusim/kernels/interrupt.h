/* Keyboard interrupts in long loops. A loop counts its work, reads the clock after each NPU_LOOK elements, and lets
 * Python check for signals when enough time has passed. Short kernels only pay for the count. */
#ifndef NPUSIM_INTERRUPT_H
#define NPUSIM_INTERRUPT_H

#include <time.h>

#include "base.h"

/* Elements between two clock reads: about 0.1 to 5 ms. */
enum { NPU_LOOK = 1 << 16 };
/* Elements of a long row that are processed at once. */
enum { NPU_PIECE = NPU_LOOK };

static NPU_THREAD int npu_interrupted;

/* Whether Python should check for signals now. */
static NPU_UNUSED int npu_due(void)
{
    static NPU_THREAD double last;
    const double period = 0.05; /* seconds; acquiring the interpreter's lock may take a tenth of it */
    struct timespec now;
    double seconds;
    timespec_get(&now, TIME_UTC);
    seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    if (seconds >= last && seconds < last + period) /* false if the clock was set back */
        return 0;
    last = seconds;
    return 1;
}

#endif
