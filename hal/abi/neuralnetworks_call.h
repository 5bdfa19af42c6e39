/* How the functions of the NNAPI C API pass their name and their arguments to Python. */
#ifndef NPU_NEURALNETWORKS_CALL_H
#define NPU_NEURALNETWORKS_CALL_H

#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define COUNT(words) ((int32_t)(sizeof(words) / sizeof(words)[0]))

/* The words of a call, answered by Python; DEAD_OBJECT where Python has been before, UNAVAILABLE_DEVICE where it never
 * was. */
int npu_nnapi_call(const char *function, const int64_t *words, int32_t count);

static inline int64_t bits_of(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (int64_t)bits;
}

/* NULL is set from the beginning: Python also writes it, but may be unavailable. */
static inline int64_t place_of(void *pointer)
{
    if (pointer)
        memset(pointer, 0, sizeof(void *));
    return (int64_t)(intptr_t)pointer;
}

#define POINTER(value) ((int64_t)(intptr_t)(value))
#define MADE(value) place_of(value)
#define INTEGER(value) ((int64_t)(value))
#define FLOAT(value) bits_of(value)

#define DEFINED(linkage, name, parameters, ...)          \
    linkage int name parameters                          \
    {                                                    \
        const int64_t words[] = {__VA_ARGS__};           \
        return npu_nnapi_call(#name, words, COUNT(words)); \
    }
#define FUNCTION(name, parameters, ...) DEFINED(EXPORT, name, parameters, __VA_ARGS__)
#define STATIC_FUNCTION(name, parameters, ...) DEFINED(static, name, parameters, __VA_ARGS__)
#define RELEASE(name, parameters, argument)              \
    EXPORT void name parameters                          \
    {                                                    \
        const int64_t words[] = {argument};              \
        if (words[0])                                    \
            (void)npu_nnapi_call(#name, words, COUNT(words));      \
    }

#endif
