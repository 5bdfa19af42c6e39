#define _GNU_SOURCE
#include "embed_paths.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* setup.py takes these from the Python that builds. */
#ifndef NPU_LIBPYTHON_DIR
#define NPU_LIBPYTHON_DIR ""
#endif
#ifndef NPU_LIBPYTHON_NAME
#define NPU_LIBPYTHON_NAME "libpython3.so"
#endif
#ifndef NPU_BUILD_PYTHON
#define NPU_BUILD_PYTHON ""
#endif

static const char PACKAGE[] = "/hal/abi/lib/";

/* Joins two parts; false when they do not fit. */
static bool join(char *target, const char *first, const char *second) {
    int length = snprintf(target, PATH_MAX, "%s%s", first, second);
    return length >= 0 && length < PATH_MAX;
}

/* Cuts the last `count` components off. */
static void cut(char *path, int count) {
    while (count-- > 0) {
        char *slash = strrchr(path, '/');
        if (slash == NULL) {
            path[0] = '\0';
            return;
        }
        *slash = '\0';
    }
}

static bool ends_with(const char *path, const char *tail) {
    size_t length = strlen(path), wanted = strlen(tail);
    return length >= wanted && strcmp(path + length - wanted, tail) == 0;
}

/* The folder that holds the package, from where this very code was loaded. */
static void find_root(char *root) {
    Dl_info info;
    char self[PATH_MAX];
    root[0] = '\0';
    if (dladdr((const void *)PACKAGE, &info) == 0 || realpath(info.dli_fname, self) == NULL) {
        return;
    }
    char *found = NULL;
    for (char *at = self; (at = strstr(at, PACKAGE)) != NULL; at++) {
        found = at;
    }
    if (found != NULL) {
        *found = '\0';
        join(root, self, "");
    }
}

/* <prefix>/lib/python3.11/site-packages belongs to <prefix>/bin/python3. */
static bool python_of_root(const char *root, char *python) {
    char prefix[PATH_MAX];
    if (!(ends_with(root, "/site-packages") || ends_with(root, "/dist-packages")) || !join(prefix, root, "")) {
        return false;
    }
    cut(prefix, 3);
    return join(python, prefix, "/bin/python3") && access(python, X_OK) == 0;
}

bool npu_paths_find(npu_paths *paths, const char **problem) {
    const char *wanted = secure_getenv("NPUSIM_PYTHON"); /* code to load: not for a program with elevated privileges */
    find_root(paths->root);
    if (wanted != NULL && *wanted != '\0') {
        if (!join(paths->python, wanted, "") || access(wanted, X_OK) != 0) {
            *problem = "NPUSIM_PYTHON must name a Python interpreter; that is no executable file";
            return false;
        }
        return true;
    }
    if (!python_of_root(paths->root, paths->python)) {
        bool usable = join(paths->python, NPU_BUILD_PYTHON, "") && access(paths->python, X_OK) == 0;
        paths->python[usable ? strlen(paths->python) : 0] = '\0';
    }
    return true;
}

/* <somewhere>/bin/python3.11 has its library in <somewhere>/lib. */
static bool beside(const char *executable, char *library) {
    char prefix[PATH_MAX];
    if (!join(prefix, executable, "")) {
        return false;
    }
    cut(prefix, 2);
    return join(library, prefix, "/lib/" NPU_LIBPYTHON_NAME) && access(library, R_OK) == 0;
}

/* An environment with a copy instead of a link names its origin in pyvenv.cfg: "home = /somewhere/bin". */
static bool of_home(const char *python, char *library) {
    char path[PATH_MAX], line[PATH_MAX], home[PATH_MAX] = "";
    if (!join(path, python, "")) {
        return false;
    }
    cut(path, 2);
    FILE *file = join(line, path, "/pyvenv.cfg") ? fopen(line, "re") : NULL;
    if (file == NULL) {
        return false;
    }
    while (home[0] == '\0' && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, " home = %4000[^\r\n]", home) != 1) {
            home[0] = '\0';
        }
    }
    fclose(file);
    return home[0] != '\0' && join(path, home, "/python3") && beside(path, library);
}

const char *npu_paths_libpython(const npu_paths *paths, int index) {
    static char library[PATH_MAX];
    char real[PATH_MAX];
    const char *wanted = secure_getenv("NPUSIM_LIBPYTHON");
    if (wanted != NULL && *wanted != '\0') {
        return index == 0 ? wanted : NULL; /* an explicit name is used, or an error */
    }
    bool known = paths->python[0] != '\0';
    switch (index) {
        case 0:
            return known && realpath(paths->python, real) != NULL && beside(real, library) ? library : "";
        case 1:
            return known && of_home(paths->python, library) ? library : "";
        case 2:
            return join(library, NPU_LIBPYTHON_DIR "/", NPU_LIBPYTHON_NAME) && access(library, R_OK) == 0 ? library : "";
        case 3:
            return NPU_LIBPYTHON_NAME; /* wherever the dynamic linker looks */
        default:
            return NULL;
    }
}
