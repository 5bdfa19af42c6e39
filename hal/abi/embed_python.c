#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "embed_python.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "embed_paths.h"

/* All functions of Python that are used here. None is linked, because the process may have any Python, or none. */
#define PYTHON_FUNCTIONS(X)                                                                                            \
    X(Py_IsInitialized)                                                                                                \
    X(PyPreConfig_InitIsolatedConfig)                                                                                  \
    X(Py_PreInitialize)                                                                                                \
    X(PyConfig_InitIsolatedConfig)                                                                                     \
    X(PyConfig_SetBytesString)                                                                                         \
    X(PyConfig_Clear)                                                                                                  \
    X(PyStatus_Exception)                                                                                              \
    X(Py_InitializeFromConfig)                                                                                         \
    X(PyGILState_Ensure)                                                                                               \
    X(PyGILState_Release)                                                                                              \
    X(PyEval_SaveThread)                                                                                               \
    X(PyEval_RestoreThread)                                                                                            \
    X(PyImport_ImportModule)                                                                                           \
    X(PyObject_GetAttrString)                                                                                          \
    X(PyObject_CallMethod)                                                                                             \
    X(PyObject_Str)                                                                                                    \
    X(PyUnicode_DecodeFSDefault)                                                                                       \
    X(PyUnicode_AsUTF8)                                                                                                \
    X(PySys_GetObject)                                                                                                 \
    X(PySequence_Contains)                                                                                             \
    X(PyList_Append)                                                                                                   \
    X(PyCapsule_GetPointer)                                                                                            \
    X(PyCMethod_New)                                                                                                   \
    X(PyErr_Fetch)                                                                                                     \
    X(PyErr_NormalizeException)                                                                                        \
    X(PyErr_Restore)                                                                                                   \
    X(PyErr_Print)                                                                                                     \
    X(PyErr_Clear)                                                                                                     \
    X(Py_IncRef)                                                                                                       \
    X(Py_DecRef)

#define MEMBER(name) __typeof__(&name) name;
static struct {
    PYTHON_FUNCTIONS(MEMBER)
    __typeof__(&Py_GetVersion) Py_GetVersion;
    PyObject *none;
} py;

static const char *library = "npusim";
static void (*ending)(void);

/* The one line that a person sees; always returns false. */
__attribute__((format(printf, 1, 2))) static bool refuse(const char *format, ...) {
    char text[2 * PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s: no simulated device: %s\n", library, text);
    return false;
}

/* ------------------------------------------------------------------------------------------------- finding */

static bool resolve(void *handle, const char *name, void *target) {
    void *found = dlsym(handle, name);
    memcpy(target, &found, sizeof found);
    return found != NULL || refuse("the process has a Python without %s", name);
}

static bool right_version(void) {
    char wanted[16];
    snprintf(wanted, sizeof wanted, "%d.%d.", PY_MAJOR_VERSION, PY_MINOR_VERSION);
    const char *version = py.Py_GetVersion();
    if (strncmp(version, wanted, strlen(wanted)) == 0) {
        return true;
    }
    return refuse("this library is built for Python %d.%d, and the Python in this process is %.*s", PY_MAJOR_VERSION,
                  PY_MINOR_VERSION, (int)strcspn(version, " "), version);
}

#define RESOLVE(name) &&resolve(handle, #name, &py.name)
static bool bind(void *handle) {
    /* The version first: other versions lack some of the functions. */
    return resolve(handle, "Py_GetVersion", &py.Py_GetVersion) && right_version()
        PYTHON_FUNCTIONS(RESOLVE) && resolve(handle, "_Py_NoneStruct", &py.none);
}

/* RTLD_GLOBAL, because Python's own extension modules do not link libpython but expect its symbols in the process. */
static void *load_libpython(const npu_paths *paths) {
    char tried[PATH_MAX] = "nowhere";
    const char *name;
    for (int index = 0; (name = npu_paths_libpython(paths, index)) != NULL; index++) {
        void *handle = *name != '\0' ? dlopen(name, RTLD_NOW | RTLD_GLOBAL) : NULL;
        if (handle != NULL) {
            return handle;
        }
        if (*name != '\0') {
            const char *problem = dlerror();
            snprintf(tried, sizeof tried, "%s", problem != NULL ? problem : name);
        }
    }
    refuse("libpython cannot be loaded (%s); NPUSIM_LIBPYTHON may name it", tried);
    return NULL;
}

/* Whether this library is in the namespace of the process. A library loaded by dlmopen has its own libc, in which
 * Python does not run: loading it there crashes. */
static bool among_others(void) {
#ifdef LM_ID_BASE
    Dl_info info;
    Lmid_t place = LM_ID_BASE;
    void *self = dladdr((const void *)&py, &info) != 0 ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (self != NULL) {
        dlinfo(self, RTLD_DI_LMID, &place);
        dlclose(self);
    }
    return place == LM_ID_BASE || refuse("it must be loaded by dlopen, not by dlmopen");
#else
    return true;
#endif
}

static bool find_python(const npu_paths *paths) {
    if (dlsym(RTLD_DEFAULT, "Py_IsInitialized") != NULL) {
        return bind(RTLD_DEFAULT);
    }
    void *handle = load_libpython(paths);
    return handle != NULL && bind(handle);
}

/* ------------------------------------------------------------------------------------------------ starting */

/* Two libraries of ours in one process may start Python at the same time, and share no memory for a lock: the kernel
 * locks this process's own entry in /proc for them. Without /proc there is no such protection. */
static int lock_process(void) {
    int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        (void)flock(file, LOCK_EX);
    }
    return file;
}

static void unlock_process(int file) {
    if (file >= 0) {
        close(file);
    }
}

/* As a guest in the process, Python leaves locale and signals alone and reads no PYTHON* variables, which are meant for
 * the host. */
static PyStatus configure(PyConfig *config, const npu_paths *paths) {
    PyPreConfig early;
    py.PyPreConfig_InitIsolatedConfig(&early);
    early.utf8_mode = 1;
    PyStatus status = py.Py_PreInitialize(&early);
    if (py.PyStatus_Exception(status)) {
        return status;
    }
    py.PyConfig_InitIsolatedConfig(config);
    config->buffered_stdio = 0; /* nothing flushes at the end of a C program */
    if (paths->python[0] != '\0') { /* finds pyvenv.cfg, and through it the packages */
        status = py.PyConfig_SetBytesString(config, &config->executable, paths->python);
        if (!py.PyStatus_Exception(status)) {
            status = py.PyConfig_SetBytesString(config, &config->program_name, paths->python);
        }
    }
    return status;
}

/* Python's signal module, which others import sooner or later, sets a handler for SIGINT even if none is wanted: Ctrl-C
 * would no longer end the host. So import it now and undo its effect. */
static void keep_interrupts(const struct sigaction *before) {
    py.Py_DecRef(py.PyImport_ImportModule("_signal"));
    py.PyErr_Clear();
    sigaction(SIGINT, before, NULL);
}

static bool start_python(const npu_paths *paths) {
    struct sigaction before;
    PyConfig config = {0};
    sigaction(SIGINT, NULL, &before);
    PyStatus status = configure(&config, paths);
    if (!py.PyStatus_Exception(status)) {
        status = py.Py_InitializeFromConfig(&config);
    }
    py.PyConfig_Clear(&config);
    if (py.PyStatus_Exception(status)) {
        return refuse("Python does not start (%s)", status.err_msg != NULL ? status.err_msg : "no reason given");
    }
    keep_interrupts(&before);
    py.PyEval_SaveThread();
    return true;
}

/* Whether Python's packages have room: where they do not, some of them end the whole process. */
static bool enough_addresses(void) {
    const size_t least = (size_t)256 << 20;
    void *tried = mmap(NULL, least, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (tried == MAP_FAILED) {
        return refuse("less than %zu MiB of addresses are left for this process", least >> 20);
    }
    munmap(tried, least);
    return true;
}

static bool ensure_started(const npu_paths *paths) {
    int lock = lock_process();
    bool running = py.Py_IsInitialized() || start_python(paths);
    unlock_process(lock);
    return running;
}

/* ----------------------------------------------------------------------------------------------- importing */

/* Report the current exception and clear it. */
static bool refuse_error(const char *what) {
    PyObject *type, *value, *traceback;
    const char *debug = getenv("NPUSIM_DEBUG");
    py.PyErr_Fetch(&type, &value, &traceback);
    py.PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *text = value != NULL ? py.PyObject_Str(value) : NULL;
    const char *reason = text != NULL ? py.PyUnicode_AsUTF8(text) : NULL;
    refuse("%s (%s)%s", what, reason != NULL ? reason : "no reason given",
           debug != NULL ? "" : "; NPUSIM_DEBUG=1 shows more");
    py.Py_DecRef(text);
    py.PyErr_Restore(type, value, traceback);
    debug != NULL ? py.PyErr_Print() : py.PyErr_Clear();
    return false;
}

/* Make the package of this library importable, after everything else that is. */
static void extend_path(const char *root) {
    PyObject *path = py.PySys_GetObject("path"); /* borrowed */
    PyObject *entry = *root != '\0' ? py.PyUnicode_DecodeFSDefault(root) : NULL;
    if (path != NULL && entry != NULL && py.PySequence_Contains(path, entry) == 0) {
        (void)py.PyList_Append(path, entry);
    }
    py.Py_DecRef(entry);
    py.PyErr_Clear();
}

static PyObject *at_exit(PyObject *self, PyObject *arguments) {
    (void)self;
    (void)arguments;
    PyThreadState *state = py.PyEval_SaveThread();
    ending();
    py.PyEval_RestoreThread(state);
    py.Py_IncRef(py.none);
    return py.none;
}

static bool register_at_exit(void) {
    static PyMethodDef method = {.ml_name = "close_gate", .ml_meth = at_exit, .ml_flags = METH_NOARGS};
    PyObject *module = py.PyImport_ImportModule("atexit");
    PyObject *hook = module != NULL ? py.PyCMethod_New(&method, NULL, NULL, NULL) : NULL;
    PyObject *result = hook != NULL ? py.PyObject_CallMethod(module, "register", "O", hook) : NULL;
    bool done = result != NULL;
    py.Py_DecRef(result);
    py.Py_DecRef(hook);
    py.Py_DecRef(module);
    return done || refuse_error("Python's atexit does not work");
}

/* The table in the module's capsule; the module stays referenced, and with it the table. */
static const void *import_table(const npu_embed_request *request) {
    char name[256];
    snprintf(name, sizeof name, "%s.%s", request->module, request->capsule);
    PyObject *module = py.PyImport_ImportModule(request->module);
    PyObject *capsule = module != NULL ? py.PyObject_GetAttrString(module, request->capsule) : NULL;
    const npu_table_head *head = capsule != NULL ? py.PyCapsule_GetPointer(capsule, name) : NULL;
    py.Py_DecRef(capsule);
    if (head == NULL) {
        refuse_error("the Python package npusim cannot be imported");
        return NULL;
    }
    if (head->version != request->version || head->size != request->size) {
        refuse("%s is of another version than this library", request->module);
        return NULL;
    }
    return head;
}

/* Queried before anything is bound; found once per asking thread. */
#define QUESTIONS(X)                                                                                                   \
    X(Py_IsInitialized)                                                                                                \
    X(PyGILState_GetThisThreadState)                                                                                   \
    X(_PyThreadState_UncheckedGet)                                                                                     \
    X(PyThreadState_GetInterpreter)                                                                                    \
    X(PyInterpreterState_Main)

static _Thread_local struct {
    QUESTIONS(MEMBER)
    bool found;
} ask;

/* This thread's state of a Python that is running, or NULL. */
static PyThreadState *own_state(void) {
#define FIND(name) &&(*(void **)&ask.name = dlsym(RTLD_DEFAULT, #name)) != NULL
    ask.found = ask.found || (true QUESTIONS(FIND));
    return ask.found && ask.Py_IsInitialized() ? ask.PyGILState_GetThisThreadState() : NULL;
}

bool npu_python_locked(void) {
    PyThreadState *own = own_state();
    /* PyGILState_Check() always returns true if there are subinterpreters. */
    return own != NULL && own == ask._PyThreadState_UncheckedGet();
}

bool npu_python_elsewhere(void) {
    PyThreadState *own = own_state();
    return own != NULL && ask.PyThreadState_GetInterpreter(own) != ask.PyInterpreterState_Main();
}

const void *npu_python_table(const npu_embed_request *request, void (*close)(void)) {
    npu_paths paths;
    const char *problem = NULL;
    library = request->library;
    ending = close;
    if (!npu_paths_find(&paths, &problem)) {
        refuse("%s", problem);
        return NULL;
    }
    if (!among_others() || !enough_addresses() || !find_python(&paths) || !ensure_started(&paths)) {
        return NULL;
    }
    PyGILState_STATE state = py.PyGILState_Ensure();
    extend_path(paths.root);
    const void *found = import_table(request);
    if (found != NULL && !register_at_exit()) {
        found = NULL;
    }
    py.PyGILState_Release(state);
    return found;
}
