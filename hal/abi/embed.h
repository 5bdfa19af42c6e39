/* Python for a C library: found in the process or started in it, entered through a gate, refused when it is gone.
 *
 * A library that has this linked in depends on nothing but libc. The first call of npu_embed_table() finds the
 * interpreter that the process has, or loads libpython and starts one that knows the environment the library is
 * installed in; it imports one Cython module and takes from it a table of C functions. Every call through that table
 * happens between npu_embed_enter() and npu_embed_leave(): the gate between them closes when the interpreter ends.
 *
 * NPUSIM_LIBPYTHON names the libpython to load, NPUSIM_PYTHON the interpreter whose packages are wanted; NPUSIM_DEBUG
 * shows the traceback when the module cannot be imported. The first two count only in a process that has no rights but
 * those of its caller (secure_getenv). */
#ifndef NPU_EMBED_H
#define NPU_EMBED_H

#include <fenv.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* What every table begins with. */
typedef struct npu_table_head {
    uint32_t version;
    uint32_t size; /* bytes of the whole table */
} npu_table_head;

typedef struct npu_embed_request {
    const char *library; /* what messages call the library */
    const char *module;  /* the Cython module: "hal.onnxifi._table" */
    const char *capsule; /* its attribute that holds the table; the capsule is named "<module>.<attribute>" */
    uint32_t version;    /* the table must have this version ... */
    uint32_t size;       /* ... and this size */
    void (*at_exit)(void); /* or NULL: called once when the interpreter ends, with the gate closed and no lock held */
} npu_embed_request;

/* The table, the same one at every call; NULL when there is no Python to be had, which one line on standard error has
 * said by then, or in a forked child. The first request counts. The calling thread may hold Python's lock. */
const void *npu_embed_table(const npu_embed_request *request);

/* The same for code that lives in a Python module: table is the module's own. The module calls npu_embed_close() from
 * an atexit function, without Python's lock. */
void npu_embed_adopt(const npu_embed_request *request, const void *table);

/* Closes the gate, waits for those inside, calls at_exit. A second call does nothing. */
void npu_embed_close(void);

/* Whether Python may be called now; if so, npu_embed_leave() has to follow. Never blocks. */
bool npu_embed_enter(void);
void npu_embed_leave(void);

/* Calls work(argument), here or, where Python has too little room on the stack, or the thread belongs to a
 * subinterpreter, on a thread that is made for it; false, and nothing was called, if there can be no thread. Every call
 * of a table's function goes through this. */
bool npu_embed_call(void (*work)(void *), void *argument);

/* A new thread with room for Python, which takes none of the host's signals. */
bool npu_embed_thread(pthread_t *thread, void *(*body)(void *), void *argument);

/* What a host may have set for its thread, and nothing in here works with: its floating-point environment (rounding,
 * denormals as zeros, exceptions that trap), which threads made meanwhile inherit, and that it may be cancelled, which
 * would leave locks taken. */
typedef struct npu_host_mode {
    fenv_t floats;
    int cancelling;
} npu_host_mode;

npu_host_mode npu_host_mode_aside(void);
void npu_host_mode_back(const npu_host_mode *mode);

/* Begins every function that a host calls: what is set for its thread is put aside until the function returns. */
#define NPU_HOST_MODE_ASIDE                                                                                            \
    __attribute__((cleanup(npu_host_mode_back), unused)) const npu_host_mode host_mode = npu_host_mode_aside()

/* Whether this process is a child, by fork, of the one that started Python: its threads and locks did not come along.
 * It is for all children after npu_embed_begin(), which comes before any lock that the start takes. */
bool npu_embed_forked(void);
void npu_embed_begin(void);

#endif
