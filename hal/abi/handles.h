/* Handles that are checked without being dereferenced: a slot's number and generation, and the library's tag.
 *
 * NULL, garbage, a released handle and a handle of another library or kind all give NULL. The table has no lock; its
 * owner has one anyway. */
#ifndef NPU_HANDLES_H
#define NPU_HANDLES_H

#include <stdint.h>

typedef struct npu_slot {
    void *object;        /* NULL: the slot is free */
    uint32_t generation; /* 1, 2, ...: of the handle in force, or of the last one */
    uint32_t next_free;
    uint8_t kind;
} npu_slot;

typedef struct npu_handles {
    uint16_t tag; /* 1 to 0xFFF, another one for each library, so that handles do not pass between them */
    uint32_t capacity;
    uint32_t used;       /* slots that were ever taken */
    uint32_t first_free; /* number + 1; 0: none */
    npu_slot *slots;
} npu_handles;

/* A new handle of a kind (1 to 15) for an object that is not NULL; NULL when there is no memory. */
void *npu_handle_new(npu_handles *handles, unsigned kind, void *object);

/* The object, or NULL. */
void *npu_handle_get(const npu_handles *handles, unsigned kind, const void *handle);

/* The object, whose handle is invalid from now on, or NULL. */
void *npu_handle_remove(npu_handles *handles, unsigned kind, const void *handle);

#endif
