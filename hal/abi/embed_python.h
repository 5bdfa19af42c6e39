/* The part of embed.c that speaks to Python: finding it, starting it, importing the module. */
#ifndef NPU_EMBED_PYTHON_H
#define NPU_EMBED_PYTHON_H

#include "embed.h"

/* Finds or starts Python and gets the table; at_exit is called, without Python's lock, when the interpreter ends. NULL
 * after one line on standard error. Must not be called concurrently. */
const void *npu_python_table(const npu_embed_request *request, void (*at_exit)(void));

/* Whether the calling thread holds Python's lock. */
bool npu_python_locked(void);

/* Whether the calling thread is one of a subinterpreter's: what is done there would be its own, and end with it. */
bool npu_python_elsewhere(void);

#endif
