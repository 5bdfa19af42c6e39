/* Python for a C library: the interpreter of the process, or one that is started; entered through a gate, and refused
 * when it is gone.
 *
 * A library that links this depends on nothing but libc. The first call of npu_embed_table() uses the interpreter of
 * the process, or loads libpython and starts one in the environment that the library is installed in. It imports one
 * Cython module and gets a table of C functions from it. Every call through that table is between npu_embed_enter() and
 * npu_embed_leave(); the gate between them closes when the interpreter ends.
 *
 * NPUSIM_LIBPYTHON names the libpython to load, NPUSIM_PYTHON the interpreter whose packages are used; NPUSIM_DEBUG
 * shows the traceback if the module cannot be imported. The first two are ignored in a process with more privileges
 * than its caller (secure_getenv). */
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

/* The table, the same for every call; NULL if Python is unavailable, which is reported in one line on standard error,
 * or in a forked child. The first request counts. The calling thread may hold Python's lock. */
const void *npu_embed_table(const npu_embed_request *request);

/* The same for code that lives in a Python module: table is the module's own. The module calls npu_embed_close() from
 * an atexit function, without Python's lock. */
void npu_embed_adopt(const npu_embed_request *request, const void *table);

/* Closes the gate, waits for those inside, calls at_exit. A second call does nothing. */
void npu_embed_close(void);

/* Whether Python may be called now; if so, npu_embed_leave() must follow. Never blocks. */
bool npu_embed_enter(void);
void npu_embed_leave(void);

/* Calls work(argument), on this thread or, if the stack is too small for Python or the thread belongs to a
 * subinterpreter, on a new thread; false, without a call, if no thread can be started. Every call of a function of the
 * table uses this. */
bool npu_embed_call(void (*work)(void *), void *argument);

/* A new thread with enough stack for Python, which receives none of the host's signals. */
bool npu_embed_thread(pthread_t *thread, void *(*body)(void *), void *argument);

/* State of the host's thread that this code cannot work with: its floating-point environment (rounding, denormals as
 * zeros, traps), which new threads inherit, and its cancellability, because cancellation would leave locks held. */
typedef struct npu_host_mode {
    fenv_t floats;
    int cancelling;
} npu_host_mode;

npu_host_mode npu_host_mode_aside(void);
void npu_host_mode_back(const npu_host_mode *mode);

/* Begins every function that a host calls: what is set for its thread is put aside until the function returns. */
#define NPU_HOST_MODE_ASIDE                                                                                            \
    __attribute__((cleanup(npu_host_mode_back), unused)) const npu_host_mode host_mode = npu_host_mode_aside()

/* Whether this process is a forked child of the one that started Python, whose threads and locks do not exist here.
 * True for all children after npu_embed_begin(), which precedes any lock that the start takes. */
bool npu_embed_forked(void);
void npu_embed_begin(void);

#endif
