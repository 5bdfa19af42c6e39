#include "handles.h"

#include <stdlib.h>

/* Bits of a handle, from the lowest: 4 kind, 12 tag, 24 number of the slot, 24 generation. */
enum { KIND_BITS = 4, TAG_BITS = 12, NUMBER_BITS = 24, GENERATION_BITS = 24 };
enum { MOST_SLOTS = 1 << NUMBER_BITS, LAST_GENERATION = (1 << GENERATION_BITS) - 1, FIRST_CAPACITY = 64 };

_Static_assert(sizeof(uintptr_t) == 8, "handles are made for 64-bit machines");

static void *encode(const npu_handles *handles, unsigned kind, uint32_t number, uint32_t generation) {
    uint64_t value = generation;
    value = value << NUMBER_BITS | number;
    value = value << TAG_BITS | handles->tag;
    value = value << KIND_BITS | kind;
    return (void *)(uintptr_t)value;
}

static npu_slot *slot_of(const npu_handles *handles, unsigned kind, const void *handle) {
    uint32_t number = (uint32_t)((uintptr_t)handle >> (KIND_BITS + TAG_BITS)) & (MOST_SLOTS - 1);
    if (number >= handles->used) {
        return NULL;
    }
    npu_slot *slot = &handles->slots[number];
    if (slot->object == NULL || slot->kind != kind || encode(handles, kind, number, slot->generation) != handle) {
        return NULL;
    }
    return slot;
}

static int grow(npu_handles *handles) {
    uint32_t capacity = handles->capacity > 0 ? handles->capacity * 2 : FIRST_CAPACITY;
    if (capacity > MOST_SLOTS) {
        return 0;
    }
    npu_slot *slots = realloc(handles->slots, capacity * sizeof *slots);
    if (slots == NULL) {
        return 0;
    }
    handles->slots = slots;
    handles->capacity = capacity;
    return 1;
}

void *npu_handle_new(npu_handles *handles, unsigned kind, void *object) {
    uint32_t number;
    if (handles->first_free > 0) {
        number = handles->first_free - 1;
        handles->first_free = handles->slots[number].next_free;
    } else {
        if (handles->used == handles->capacity && !grow(handles)) {
            return NULL;
        }
        number = handles->used++;
        handles->slots[number] = (npu_slot){0};
    }
    npu_slot *slot = &handles->slots[number];
    slot->object = object;
    slot->kind = (uint8_t)kind;
    slot->generation++;
    return encode(handles, kind, number, slot->generation);
}

void *npu_handle_get(const npu_handles *handles, unsigned kind, const void *handle) {
    const npu_slot *slot = slot_of(handles, kind, handle);
    return slot != NULL ? slot->object : NULL;
}

void *npu_handle_remove(npu_handles *handles, unsigned kind, const void *handle) {
    npu_slot *slot = slot_of(handles, kind, handle);
    if (slot == NULL) {
        return NULL;
    }
    void *object = slot->object;
    slot->object = NULL;
    if (slot->generation < LAST_GENERATION) { /* otherwise the slot is never used again: no handle occurs twice */
        slot->next_free = handles->first_free;
        handles->first_free = (uint32_t)(slot - handles->slots) + 1;
    }
    return object;
}
