/* Where this library is installed, and which Python that installation belongs to. */
#ifndef NPU_EMBED_PATHS_H
#define NPU_EMBED_PATHS_H

#include <limits.h>
#include <stdbool.h>

typedef struct npu_paths {
    char root[PATH_MAX];   /* the folder that holds the package hal; "" when unknown */
    char python[PATH_MAX]; /* the interpreter whose packages are wanted; "" when unknown */
} npu_paths;

/* Sets both, following symbolic links. False if NPUSIM_PYTHON names no executable file: *problem has the message. */
bool npu_paths_find(npu_paths *paths, const char **problem);

/* The next place to look for libpython, or NULL: call with index 0, 1, ... The text is valid until the next call. */
const char *npu_paths_libpython(const npu_paths *paths, int index);

#endif
