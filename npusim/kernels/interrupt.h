/* How a long loop hears of an interrupt from the keyboard: it counts what it has done, looks at the clock after so much
 * work, and lets Python look when enough time has gone by. Short kernels pay for the counting alone. */
#ifndef NPUSIM_INTERRUPT_H
#define NPUSIM_INTERRUPT_H

#include <time.h>

#include "base.h"

/* Work between two looks at the clock, in elements: some 0.1 to 5 ms. */
enum { NPU_LOOK = 1 << 16 };
/* What is done of a long row at once. */
enum { NPU_PIECE = NPU_LOOK };

static NPU_THREAD int npu_interrupted;

/* Whether Python is to look now. */
static NPU_UNUSED int npu_due(void)
{
    static NPU_THREAD double last;
    const double period = 0.05; /* seconds; Python's lock may cost a tenth of it */
    struct timespec now;
    double seconds;
    timespec_get(&now, TIME_UTC);
    seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    if (seconds >= last && seconds < last + period) /* a clock that is set back is looked at anew */
        return 0;
    last = seconds;
    return 1;
}

#endif
